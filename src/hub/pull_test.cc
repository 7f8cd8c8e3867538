// Pulls from a fake hub on loopback: the layout, going on, redirects and the token, and hubs that fail or lie.
#include "hub/pull.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "hub/fake_hub_for_test.h"
#include "model/hub_cache.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

using Answer = FakeHub::Answer;
using Asked = FakeHub::Asked;

class Heard : public PullWatcher {
 public:
  bool stopped() override { return bytes_ >= stop_at; }
  void at(const RepoFile&, int64_t bytes) override { bytes_ = bytes; }
  void note(const std::string& text) override { notes += text + "\n"; }

  int64_t stop_at = INT64_MAX;
  std::string notes;

 private:
  int64_t bytes_ = 0;
};

class PullTest : public HubFolderTest {
 protected:
  HubSource source() const {
    HubSource out;
    out.endpoint = hub_.url();
    out.folder = folder_.string();
    out.tries = 3;
    out.wait = std::chrono::milliseconds(1);
    return out;
  }
  Result<std::string> pulled(const HubSource& source, const std::string& tag = "") {
    KVILT_ASSIGN(const PullPlan plan, plan_pull({"org", "name", tag}, source, heard_));
    return pull(plan, source, heard_);
  }
  Result<std::string> pulled() { return pulled(source()); }
  std::string refused() { return refused(source()); }
  std::string refused(const HubSource& source) {
    const auto out = pulled(source);
    return out.ok() ? "pulled" : out.error().message;
  }
  fs::path incomplete(const std::string& contents) const {
    return model() / "blobs" / (hash_for_test(contents, true) + ".incomplete");
  }
  // Every file's first answer is this one, later ones are usual.
  void first_answer(std::function<Answer(const Asked&)> make) {
    hub_.answer([this, make, first = std::make_shared<std::atomic<bool>>(true)](const Asked& asked) {
      return asked.file() && first->exchange(false) ? make(asked) : hub_.usual(asked);
    });
  }

  FakeHub hub_;
  Heard heard_;
  const std::string bytes_ = bytes_for_test(600'000, 1);
};

TEST_F(PullTest, MakesTheHubsOwnLayout) {
  hub_.add("m-Q8_0.gguf", bytes_);
  hub_.add("m-Q4_K_M.gguf", "other");
  const auto path = pulled(source(), "Q8_0");
  ASSERT_TRUE(path.ok()) << path.error().message;
  EXPECT_EQ(*path, (snapshot() / "m-Q8_0.gguf").string());
  EXPECT_EQ(slurp_for_test(*path), bytes_);
  EXPECT_EQ(fs::read_symlink(*path).string(), "../../blobs/" + hash_for_test(bytes_, true));
  EXPECT_EQ(slurp_for_test(model() / "refs/main"), FakeHub::kCommit);
  EXPECT_FALSE(fs::exists(snapshot() / "m-Q4_K_M.gguf"));
  const auto found = find_model_in(folder_.string(), "org/name:Q8_0");
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(*found, *path) << "serve finds it by the same name";
  ASSERT_TRUE(pulled(source(), "Q8_0").ok());
  EXPECT_EQ(hub_.asked_files().size(), 1u) << "the second pull finds it";
  ASSERT_TRUE(pulled(source(), "Q4_K_M").ok());
  EXPECT_EQ(hub_.asked_files().size(), 2u) << "power";
}

TEST_F(PullTest, AFolderWithSmallFilesByGitsHash) {
  hub_.add("model.safetensors", bytes_);
  hub_.add("config.json", "{}", false);
  hub_.add("empty.txt", "", false);
  hub_.add("vocab.json", "", false);
  const auto path = pulled();
  ASSERT_TRUE(path.ok()) << path.error().message;
  EXPECT_EQ(*path, snapshot().string());
  EXPECT_EQ(slurp_for_test(snapshot() / "config.json"), "{}");
  EXPECT_EQ(fs::read_symlink(snapshot() / "config.json").string(), "../../blobs/" + hash_for_test("{}", false));
  EXPECT_TRUE(fs::exists(snapshot() / "vocab.json")) << "a file of no bytes";
  EXPECT_FALSE(fs::exists(snapshot() / "empty.txt"));
}

TEST_F(PullTest, ARevisionHasItsOwnRef) {
  hub_.add("m.gguf", bytes_);
  HubSource named = source();
  named.revision = "refs/pr/1";
  ASSERT_TRUE(pulled(named).ok());
  EXPECT_EQ(hub_.asked()[0].path, "/api/models/org/name/revision/refs%2Fpr%2F1?blobs=true");
  EXPECT_EQ(slurp_for_test(model() / "refs/refs/pr/1"), FakeHub::kCommit);
  EXPECT_FALSE(fs::exists(model() / "refs/main"));
  named.revision = "../../main";
  EXPECT_NE(refused(named).find("is no revision"), std::string::npos);
}

TEST_F(PullTest, ABrokenConnectionGoesOn) {
  hub_.add("m.gguf", bytes_);
  first_answer([&](const Asked& asked) {
    Answer cut = hub_.usual(asked);
    cut.bytes.resize(cut.bytes.size() / 2);
    return cut;
  });
  const auto path = pulled();
  ASSERT_TRUE(path.ok()) << path.error().message;
  EXPECT_EQ(slurp_for_test(*path), bytes_);
  ASSERT_EQ(hub_.asked_files().size(), 2u);
  EXPECT_GT(hub_.asked_files()[1].from, 200'000);
  EXPECT_NE(heard_.notes.find("try 2 of 3"), std::string::npos) << heard_.notes;
}

TEST_F(PullTest, OnlyTriesWithoutAByteAreCounted) {
  hub_.add("m.gguf", bytes_);
  hub_.answer([&](const Asked& asked) {
    Answer out = hub_.usual(asked);
    if (asked.file()) out.bytes.resize(std::min<size_t>(out.bytes.size(), 50'000));
    return out;
  });
  ASSERT_TRUE(pulled().ok());
  EXPECT_GT(hub_.asked_files().size(), 10u) << "more than the tries in a row";
  fs::remove_all(model());
  hub_.answer([&](const Asked& asked) { return asked.file() ? Answer{} : hub_.usual(asked); });
  const size_t before = hub_.asked_files().size();
  EXPECT_FALSE(pulled().ok());
  EXPECT_EQ(hub_.asked_files().size(), before + 3) << "power";
}

TEST_F(PullTest, AServerThatStartsAgainForEverIsGivenUp) {
  hub_.add("m.gguf", bytes_);
  std::atomic<int> count{0};
  hub_.answer([&](Asked asked) {
    asked.from = 0;  // it knows no ranges, and cuts here, then there
    Answer out = hub_.usual(asked);
    if (asked.file()) out.bytes.resize(count++ % 2 ? 100'000 : 200'000);
    return out;
  });
  EXPECT_FALSE(pulled().ok());
  EXPECT_EQ(hub_.asked_files().size(), 3u) << "what comes again is no progress";
}

// A proxy's page is not the file from its beginning: what had come stays.
TEST_F(PullTest, APageInsteadOfTheRestCostsNothing) {
  hub_.add("m.gguf", bytes_);
  heard_.stop_at = 100'000;
  ASSERT_FALSE(pulled().ok());
  heard_ = {};
  const auto kept = fs::file_size(incomplete(bytes_));
  ASSERT_GE(kept, 100'000u);
  hub_.answer(
      [&](const Asked& asked) { return asked.file() ? FakeHub::whole("200 OK", "<html>") : hub_.usual(asked); });
  EXPECT_FALSE(pulled().ok());
  EXPECT_EQ(fs::file_size(incomplete(bytes_)), kept);
  hub_.answer(nullptr);
  EXPECT_TRUE(pulled().ok());
  EXPECT_EQ(hub_.asked_files().back().from, static_cast<int64_t>(kept)) << "power: it went on from there";
}

TEST_F(PullTest, TheNextPullGoesOn) {
  hub_.add("m.gguf", bytes_);
  heard_.stop_at = 100'000;
  const auto ended = pulled();
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().code, Code::kCancelled);
  const auto kept = fs::file_size(incomplete(bytes_));
  EXPECT_GE(kept, 100'000u);
  EXPECT_FALSE(fs::exists(model() / "refs/main")) << "nothing points to half a model";
  heard_ = {};
  const auto plan = plan_pull({"org", "name", ""}, source(), heard_);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->absent_bytes, static_cast<int64_t>(bytes_.size() - kept));
  ASSERT_TRUE(pulled().ok());
  EXPECT_EQ(hub_.asked_files().back().from, static_cast<int64_t>(kept));
  EXPECT_EQ(slurp_for_test(snapshot() / "m.gguf"), bytes_);
}

TEST_F(PullTest, WhatWasBegunWronglyIsDoneAgain) {
  hub_.add("m.gguf", bytes_);
  fs::create_directories(model() / "blobs");
  std::ofstream(incomplete(bytes_)) << bytes_for_test(1000, 2);
  ASSERT_TRUE(pulled().ok()) << refused();
  EXPECT_EQ(slurp_for_test(snapshot() / "m.gguf"), bytes_);
  ASSERT_EQ(hub_.asked_files().size(), 2u);
  EXPECT_EQ(hub_.asked_files()[0].from, 1000);
  EXPECT_EQ(hub_.asked_files()[1].from, 0);
}

TEST_F(PullTest, AServerWithoutRangesStartsAgain) {
  hub_.add("m.gguf", bytes_);
  fs::create_directories(model() / "blobs");
  std::ofstream(incomplete(bytes_)) << bytes_.substr(0, 1000);
  hub_.answer([&](Asked asked) {
    asked.from = 0;
    return hub_.usual(asked);
  });
  ASSERT_TRUE(pulled().ok());
  EXPECT_EQ(slurp_for_test(snapshot() / "m.gguf"), bytes_);
  EXPECT_EQ(hub_.asked_files().size(), 1u);
}

TEST_F(PullTest, ARangeThatIsRefusedStartsAgain) {
  hub_.add("m.gguf", bytes_);
  fs::create_directories(model() / "blobs");
  std::ofstream(incomplete(bytes_)) << bytes_.substr(0, 1000);
  first_answer([](const Asked&) { return FakeHub::whole("416 Range Not Satisfiable", "no"); });
  ASSERT_TRUE(pulled().ok());
  EXPECT_EQ(slurp_for_test(snapshot() / "m.gguf"), bytes_);
  EXPECT_EQ(hub_.asked_files().back().from, 0);
}

TEST_F(PullTest, ASplitModelIsLinkedWhenAllOfItIsThere) {
  hub_.add("m-00001-of-00002.gguf", bytes_);
  hub_.add("m-00002-of-00002.gguf", "tail");
  hub_.answer([&](const Asked& asked) {
    return asked.path.ends_with("m-00002-of-00002.gguf") ? FakeHub::whole("404 Not Found", "") : hub_.usual(asked);
  });
  EXPECT_NE(refused().find("m-00002-of-00002.gguf: the hub has no such"), std::string::npos) << refused();
  EXPECT_FALSE(fs::exists(snapshot()));
  hub_.answer(nullptr);
  ASSERT_TRUE(pulled().ok());
  EXPECT_EQ(slurp_for_test(snapshot() / "m-00002-of-00002.gguf"), "tail");
}

// A new commit with the same files: what was pulled before is found beside what comes now.
TEST_F(PullTest, AnotherQuantisationHidesNoneThatIsThere) {
  constexpr const char* kNext = "fedcba9876543210fedcba9876543210fedcba98";
  hub_.add("m-Q4_K_M.gguf", bytes_);
  hub_.add("m-Q8_0.gguf", "eight");
  hub_.add("s-Q6_K-00001-of-00002.gguf", "head");
  hub_.add("s-Q6_K-00002-of-00002.gguf", "tail");
  ASSERT_TRUE(pulled(source(), "Q4_K_M").ok());
  ASSERT_TRUE(pulled(source(), "Q6_K").ok());
  fs::remove(model() / "blobs" / hash_for_test("tail", true));
  hub_.change_listing([&](nlohmann::json& listing) { listing["sha"] = kNext; });
  hub_.answer([&](Asked asked) {
    if (const size_t at = asked.path.find(kNext); at != std::string::npos) asked.path.replace(at, 40, FakeHub::kCommit);
    return hub_.usual(asked);
  });
  const size_t before = hub_.asked_files().size();
  ASSERT_TRUE(pulled(source(), "Q8_0").ok());
  EXPECT_EQ(hub_.asked_files().size(), before + 1);
  EXPECT_EQ(slurp_for_test(model() / "refs/main"), kNext);
  const fs::path next = model() / "snapshots" / kNext;
  for (const char* tag : {"Q4_K_M", "Q8_0"}) {
    const auto found = find_model_in(folder_.string(), std::string("org/name:") + tag);
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(*found, (next / ("m-" + std::string(tag) + ".gguf")).string());
  }
  EXPECT_EQ(slurp_for_test(next / "m-Q4_K_M.gguf"), bytes_);
  EXPECT_FALSE(fs::exists(next / "s-Q6_K-00001-of-00002.gguf")) << "of which a part is missing";
}

TEST_F(PullTest, TheTokenStaysWithItsHost) {
  hub_.add("m.gguf", bytes_);
  FakeHub store;
  store.answer([&](const Asked& asked) { return FakeHub::part_of(bytes_, asked.from); });
  HubSource with_token = source();
  with_token.token = "hf_secret";
  for (const std::string& there : {store.url(), store.url("localhost"), hub_.url("localhost")}) {
    fs::remove_all(model());
    hub_.answer([&, there](const Asked& asked) {
      if (asked.path.starts_with("/stored")) return FakeHub::part_of(bytes_, asked.from);
      if (!asked.file()) return hub_.usual(asked);
      return FakeHub::whole("302 Found", "see there", "Location: " + there + "/stored/x?sig=1\r\n");
    });
    const auto path = pulled(with_token);
    ASSERT_TRUE(path.ok()) << path.error().message;
    EXPECT_EQ(slurp_for_test(*path), bytes_);
  }
  for (const Asked& asked : store.asked()) EXPECT_EQ(asked.token, "") << "another port, and another host";
  EXPECT_EQ(store.asked().size(), 2u);
  for (const Asked& asked : hub_.asked())
    EXPECT_EQ(asked.token, asked.host.starts_with("localhost") ? "" : "Bearer hf_secret") << asked.path;
  // Power: a redirect that stays has it.
  fs::remove_all(model());
  hub_.answer([&](const Asked& asked) {
    if (asked.path.starts_with("/stored")) return FakeHub::part_of(bytes_, asked.from);
    return asked.file() ? FakeHub::whole("307 Temporary Redirect", "", "Location: /stored/x\r\n") : hub_.usual(asked);
  });
  ASSERT_TRUE(pulled(with_token).ok());
  EXPECT_EQ(hub_.asked().back().path, "/stored/x");
  EXPECT_EQ(hub_.asked().back().token, "Bearer hf_secret");
}

TEST_F(PullTest, RedirectsThatLeadNowhere) {
  hub_.add("m.gguf", bytes_);
  for (const char* there : {"file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x"}) {
    hub_.answer([&](const Asked& asked) {
      return asked.file() ? FakeHub::whole("302 Found", "", std::string("Location: ") + there + "\r\n")
                          : hub_.usual(asked);
    });
    EXPECT_NE(refused().find("only http and https"), std::string::npos) << refused();
  }
  hub_.answer([&](const Asked& asked) {
    return asked.file() ? FakeHub::whole("302 Found", "", "Location: " + asked.path + "\r\n") : hub_.usual(asked);
  });
  EXPECT_NE(refused().find("leads in a circle"), std::string::npos) << refused();
}

struct Lie {
  const char* what;
  std::function<Answer(const std::string& bytes)> answer;
  const char* message;
};

TEST_F(PullTest, HubsThatLie) {
  hub_.add("m.gguf", bytes_);
  const std::vector<Lie> lies = {
      {"other bytes", [](const std::string& b) { return FakeHub::whole("200 OK", bytes_for_test(b.size(), 3)); },
       "SHA-256"},
      {"longer", [](const std::string& b) { return FakeHub::whole("200 OK", b + "x"); }, "answer has 600001"},
      {"shorter", [](const std::string& b) { return FakeHub::whole("200 OK", b.substr(1)); }, "answer has 599999"},
      {"longer, no length", [](const std::string& b) { return Answer{FakeHub::head("200 OK") + b + "x"}; },
       "more than the 600000 bytes"},
      {"shorter, no length", [](const std::string&) { return Answer{FakeHub::head("200 OK")}; },
       "ends after 0 of 600000 bytes"},
      {"another part",
       [](const std::string& b) {
         return FakeHub::whole("206 Partial Content", b, "Content-Range: bytes 7-600006/600007\r\n");
       },
       "begins at 7"},
      {"a page to log in", [](const std::string&) { return FakeHub::whole("200 OK", "<html>"); }, "answer has 6"},
      {"an endless head",
       [](const std::string&) { return Answer{"HTTP/1.1 200 OK\r\n" + std::string(3 << 20, 'x').insert(9, ": ")}; },
       ""},
      {"many heads",
       [](const std::string&) {
         Answer out{"HTTP/1.1 200 OK\r\n"};
         for (int i = 0; i < 100'000; ++i) out.bytes += "X-Header-Line: a value\r\n";
         return out;
       },
       "head is longer"},
      {"no HTTP", [](const std::string&) { return Answer{"SSH-2.0-x\r\n"}; }, ""},
  };
  for (const Lie& lie : lies) {
    fs::remove_all(model());
    hub_.answer([&](const Asked& asked) { return asked.file() ? lie.answer(bytes_) : hub_.usual(asked); });
    const std::string message = refused();
    EXPECT_NE(message, "pulled") << lie.what;
    EXPECT_NE(message.find(lie.message), std::string::npos) << lie.what << ": " << message;
    EXPECT_FALSE(fs::exists(snapshot())) << lie.what;
    EXPECT_FALSE(fs::exists(model() / "blobs" / hash_for_test(bytes_, true))) << lie.what;
  }
  hub_.answer(nullptr);
  EXPECT_TRUE(pulled().ok()) << "power: " << refused();
}

TEST_F(PullTest, EveryStatusSaysWhatToDo) {
  hub_.add("m.gguf", bytes_);
  struct Case {
    const char *status, *head, *message;
    size_t times;
  };
  const std::vector<Case> cases = {
      {"401 Unauthorized", "", "there is no such model, or it is private; no token was sent", 1},
      {"401 Unauthorized", "X-Error-Code: GatedRepo\r\n", "accept its terms", 1},
      {"403 Forbidden", "X-Error-Message: Ask first\r\n", "(Ask first)", 1},
      {"404 Not Found", "X-Error-Code: RevisionNotFound\r\n", "no such revision", 1},
      {"404 Not Found", "", "no such model", 1},
      {"400 Bad Request", "", "answers 400", 1},
      {"429 Too Many Requests", "", "too many requests", 3},
      {"500 Internal Server Error", "", "answers 500", 3},
      {"503 Service Unavailable", "", "it is not well", 3},
  };
  for (const bool of_file : {false, true}) {
    for (const Case& one : cases) {
      const size_t before = hub_.asked().size();
      hub_.answer([&](const Asked& asked) {
        return asked.file() == of_file ? FakeHub::whole(one.status, std::string(10'000, 'x'), one.head)
                                       : hub_.usual(asked);
      });
      const std::string message = refused();
      EXPECT_NE(message.find(one.message), std::string::npos) << one.status << ": " << message;
      EXPECT_EQ(hub_.asked().size() - before, one.times + (of_file ? 1 : 0)) << one.status;
    }
  }
  first_answer([](const Asked&) { return FakeHub::whole("502 Bad Gateway", ""); });
  EXPECT_TRUE(pulled().ok()) << "one bad answer is no error";
}

TEST_F(PullTest, ListingsThatNeverEnd) {
  hub_.answer([&](const Asked&) {
    return Answer{FakeHub::head("200 OK") + "{\"sha\": \"" + std::string(kMaxListingBytes + 1000, 'a')};
  });
  EXPECT_NE(refused().find("longer than 8388608 bytes"), std::string::npos) << refused();
  hub_.answer([&](const Asked&) { return FakeHub::whole("200 OK", "<html>log in</html>"); });
  EXPECT_NE(refused().find("did a proxy answer?"), std::string::npos) << refused();
}

TEST_F(PullTest, SilenceEnds) {
  hub_.add("m.gguf", bytes_);
  HubSource impatient = source();
  impatient.limits.silence_s = 1;
  impatient.tries = 1;
  hub_.answer([&](const Asked& asked) {
    Answer out = hub_.usual(asked);
    out.hold = asked.file();
    if (out.hold) out.bytes.resize(out.bytes.find("\r\n\r\n") + 4);
    return out;
  });
  const auto out = pulled(impatient);
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.error().code, Code::kUnavailable) << out.error().message;
}

TEST_F(PullTest, NoNetworkIsSaidAtOnce) {
  HubSource nowhere = source();
  nowhere.endpoint = "http://127.0.0.1:1";
  nowhere.wait = std::chrono::hours(1);
  EXPECT_NE(refused(nowhere).find("is there a network?"), std::string::npos) << refused(nowhere);
}

TEST_F(PullTest, AProxyOfTheEnvironmentIsAsked) {
  hub_.add("m.gguf", bytes_);
  HubSource far = source();
  far.endpoint = "http://hub.invalid";
  EXPECT_NE(refused(far), "pulled") << "power: nobody has this name";
  ::setenv("http_proxy", hub_.url().c_str(), 1);
  hub_.answer([&](Asked asked) {
    if (asked.path.starts_with(far.endpoint)) asked.path.erase(0, far.endpoint.size());
    return hub_.usual(asked);
  });
  const std::string message = refused(far);
  ::unsetenv("http_proxy");
  EXPECT_EQ(message, "pulled");
  EXPECT_EQ(slurp_for_test(snapshot() / "m.gguf"), bytes_);
}

TEST_F(PullTest, TwoAtOnceDownloadOnce) {
  hub_.add("m.gguf", bytes_);
  std::atomic<int> begun{0};
  hub_.answer([&](const Asked& asked) {
    if (asked.file() && begun++ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return hub_.usual(asked);
  });
  std::vector<std::thread> both;
  std::array<std::string, 2> said, notes;
  for (size_t i = 0; i < 2; ++i) {
    both.emplace_back([&, i] {
      Heard heard;
      const auto plan = plan_pull({"org", "name", ""}, source(), heard);
      if (!plan.ok()) return;
      const auto out = pull(*plan, source(), heard);
      said[i] = out.ok() ? *out : out.error().message;
      notes[i] = heard.notes;
    });
  }
  for (std::thread& thread : both) thread.join();
  EXPECT_EQ(said[0], (snapshot() / "m.gguf").string());
  EXPECT_EQ(said[1], said[0]);
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(slurp_for_test(said[0]), bytes_);
}

TEST_F(PullTest, AFolderThatCannotBeWritten) {
  hub_.add("m.gguf", bytes_);
  std::ofstream(folder_ / "file") << "x";
  HubSource odd = source();
  odd.folder = (folder_ / "file").string();
  EXPECT_NE(refused(odd).find("file"), std::string::npos) << refused(odd);
  hub_.change_listing([](nlohmann::json& listing) { listing["siblings"][0]["lfs"]["size"] = int64_t{1} << 49; });
  EXPECT_NE(refused().find("HF_HUB_CACHE names another folder"), std::string::npos) << refused();
}

TEST_F(PullTest, TheEnvironmentIsAsTheHubsOwnClientReadsIt) {
  const std::vector<const char*> names = {"HF_ENDPOINT", "HF_TOKEN",       "HF_TOKEN_PATH",
                                          "HF_HOME",     "HF_HUB_OFFLINE", "HF_HUB_CACHE"};
  for (const char* name : names) ::unsetenv(name);
  ::setenv("HF_HOME", folder_.c_str(), 1);
  EXPECT_EQ(hub_source("")->endpoint, "https://huggingface.co");
  EXPECT_EQ(hub_source("")->token, "");
  EXPECT_EQ(hub_source("")->folder, folder_.string() + "/hub");
  std::ofstream(folder_ / "token") << "hf_file\n";
  EXPECT_EQ(hub_source("")->token, "hf_file");
  ::setenv("HF_TOKEN", "hf_env", 1);
  ::setenv("HF_ENDPOINT", "http://127.0.0.1:8080/", 1);
  EXPECT_EQ(hub_source("")->token, "hf_env");
  EXPECT_EQ(hub_source("")->endpoint, "http://127.0.0.1:8080");
  EXPECT_EQ(hub_source("https://other")->endpoint, "https://other");
  for (const char* bad : {"huggingface.co", "file:///etc", "https://", "http://a b", "http://me@there", "https://x/?q"})
    EXPECT_FALSE(hub_source(bad).ok()) << bad;
  ::setenv("HF_TOKEN", "hf\r\nX-Evil: 1", 1);
  EXPECT_FALSE(hub_source("").ok()) << "a token is one word";
  ::setenv("HF_TOKEN", "hf_env", 1);
  ::setenv("HF_HUB_OFFLINE", "1", 1);
  EXPECT_FALSE(hub_source("").ok());
  for (const char* name : names) ::unsetenv(name);
}

}  // namespace
}  // namespace kvilt
