// engine/chat.h: an OpenAI chat request to token ids with marks.
// Idea:       the template is rendered once; the text is cut at the borders of messages, of their parts and of documents
//             before it is tokenised, and the ids are joined. So a part has the same ids in every prompt, marked or not
//             (docs/design/finding.md), and a mark that moves from turn to turn changes none.
// Invariants: special tokens are recognised in the template's own text only.
// Threads:    immutable; any thread.
#pragma once

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/answer_syntax.h"
#include "engine/cache_marks.h"
#include "engine/template_traits.h"
#include "kvilt/engine.h"
#include "kvilt/result.h"
#include "template/chat_template.h"
#include "text/tokenizer.h"

namespace kvilt {

class ChatPrompts {
 public:
  // Templates. tools: of requests that have tools; empty: the same one.
  struct Sources {
    std::string usual, tools;
  };
  // tokenizer must outlive it. An empty template source means ChatML. context: rendered texts that cannot fit into so
  // many tokens are refused before they are tokenised; 0: none are.
  static Result<ChatPrompts> create(const Tokenizer& tokenizer, const Sources& sources, std::string bos,
                                    std::string eos, int64_t context = 0);
  static Result<ChatPrompts> create(const Tokenizer& tokenizer, const std::string& template_source, std::string bos,
                                    std::string eos, int64_t context = 0) {
    return create(tokenizer, Sources{template_source, ""}, std::move(bos), std::move(eos), context);
  }
  // EngineOptions::fold_volatile, for prompts from now on.
  void fold_volatile(bool folds) {
    folds_ = folds;
    if (with_tools_) with_tools_->fold_volatile(folds);
  }

  Result<Prompt> prompt(const nlohmann::ordered_json& request) const;
  // How answers are written; with a template for tools as that one shows it, since calls are what there is to read.
  const AnswerSyntax& answers() const { return with_tools_ ? with_tools_->answers() : answers_; }
  const std::string& source() const { return source_; }  // of the template of requests without tools
  // One prompt per document of the request: everything before the documents, then that one.
  Result<std::vector<Prompt>> document_prompts(const nlohmann::ordered_json& request) const;

 private:
  ChatPrompts(const Tokenizer& tokenizer, ChatTemplate chat_template, std::string bos, std::string eos)
      : tokenizer_(&tokenizer), template_(std::move(chat_template)), edges_{std::move(bos), std::move(eos)} {}
  // A text with borders, by the id of its template mark. piece: the caller marked it.
  struct Bordered {
    PromptPart::Of of;
    int32_t index, part;
    bool piece;
    Retention retention = Retention::kNone;
  };
  struct Inputs {
    ChatInputs chat;
    std::vector<Bordered> parts;
    int folded = 0;  // lines
    DocumentsPlace documents = DocumentsPlace::kNone;
    std::vector<CacheMark> cache_marks;  // template mark parts.size() + i is the i-th's
    Retention keeps_all = Retention::kNone;
    int32_t first_turn = 0;  // the first message that is not the system's
    int32_t ends = -1;       // continue_final_message: the prompt ends with this mark, the last message's text
    size_t pieces() const { return static_cast<size_t>(std::ranges::count_if(parts, &Bordered::piece)); }
  };
  static Status border_messages(Inputs& in);
  Result<Inputs> inputs(const nlohmann::ordered_json& request) const;
  static Status check_final_message(const nlohmann::ordered_json& request, Inputs& inputs);
  Status add_documents(const nlohmann::ordered_json& request, Inputs& inputs) const;
  static void keep(const Inputs& inputs, const std::vector<int32_t>& ends, Prompt& prompt);
  Result<Prompt> tokenize(const RenderedPrompt& rendered, const Inputs& inputs) const;
  Status settle_messages(nlohmann::ordered_json& messages) const;
  // Of the template that this request gets.
  const ChatPrompts& of(const nlohmann::ordered_json& request) const;
  Result<Prompt> own_prompt(const nlohmann::ordered_json& request) const;

  const Tokenizer* tokenizer_;
  ChatTemplate template_;
  EdgeTokens edges_;
  TemplateTraits traits_;
  AnswerSyntax answers_;
  std::string source_;
  int64_t context_ = 0;
  bool folds_ = false;
  std::unique_ptr<ChatPrompts> with_tools_;  // null: one template for all
};

}  // namespace kvilt
