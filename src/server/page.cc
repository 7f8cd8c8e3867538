#include "server/page.h"

namespace kvilt::server {

const std::string& page_html() {
  static const std::string html = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Kvilt</title>
<style>
  :root { color-scheme: light dark; --line: #8884; --soft: #8882;
          --prefix: #4c78a8; --reused: #59a14f; --recomputed: #e0a030; --fresh: #b0655a; }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
  p.sub { margin: .2rem 0 0; opacity: .75; }
  dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .5rem; margin: 0; }
  dl div { border: 1px solid var(--line); border-radius: .4rem; padding: .4rem .6rem; }
  dt { font-size: .8rem; opacity: .75; } dd { margin: 0; font-variant-numeric: tabular-nums; }
  textarea, input, select, button { font: inherit; box-sizing: border-box; padding: .4rem .5rem; }
  textarea { width: 100%; min-height: 5rem; } form > * { margin: .25rem 0; }
  .row { display: flex; gap: .5rem; flex-wrap: wrap; } .row input { flex: 1; min-width: 8rem; }
  pre { white-space: pre-wrap; background: var(--soft); border-radius: .4rem; padding: .7rem; min-height: 3rem; }
  .bar { display: flex; height: .9rem; border-radius: .3rem; overflow: hidden; background: var(--soft); }
  .prefix { background: var(--prefix) } .reused { background: var(--reused) }
  .recomputed { background: var(--recomputed) } .fresh { background: var(--fresh) }
  .key span { margin-right: 1rem; } .key i { display: inline-block; width: .7rem; height: .7rem; border-radius: .15rem; margin-right: .3rem; }
</style>
<h1>Kvilt</h1>
<p class="sub" id="model">connecting</p>

<h2>Since start</h2>
<dl id="counters"></dl>
<p><b>Prompt tokens by source</b></p>
<div class="bar" id="total"></div>
<p class="key" id="totalkey"></p>

<h2>Try it</h2>
<form id="form">
  <textarea id="prompt" aria-label="Message" placeholder="A message. Send it twice, or move its paragraphs, and watch the bar."></textarea>
  <div class="row">
    <select id="policy" aria-label="Policy"><option value="">default policy</option></select>
    <input id="tokens" type="number" min="1" value="128" aria-label="Most tokens of the answer" title="most tokens of the answer">
    <input id="key" type="password" placeholder="API key, if one is set" autocomplete="off">
    <button>Send</button>
  </div>
</form>
<pre id="answer" aria-live="polite"></pre>
<div class="bar" id="last"></div>
<p class="key" id="lastkey"></p>

<script>
const $ = id => document.getElementById(id);
const kinds = ["prefix", "reused", "recomputed", "fresh"];
const headers = () => ({"Content-Type": "application/json", ...($("key").value && {Authorization: "Bearer " + $("key").value})});

// `recomputed` is a part of `reused`: the bar shows the rest of reused beside it.
function bar(name, use) {
  const shown = {...use, reused: use.reused - use.recomputed};
  const sum = kinds.reduce((a, k) => a + shown[k], 0) || 1;
  $(name).replaceChildren(...kinds.map(k => {
    const part = document.createElement("div");
    part.className = k; part.style.width = 100 * shown[k] / sum + "%"; part.title = k + " " + shown[k];
    return part;
  }));
  $(name + "key").replaceChildren(...kinds.map(k => {
    const item = document.createElement("span"), dot = document.createElement("i");
    dot.className = k; item.append(dot, k + " " + use[k]);
    return item;
  }));
}

function metric(text, name, label = "") {
  let sum = 0;
  for (const line of text.split("\n"))
    if ((line.startsWith(name + "{") || line.startsWith(name + " ")) && line.includes(label)) sum += Number(line.slice(line.lastIndexOf(" ")));
  return sum;
}

async function refresh() {
  try {
    const health = await (await fetch("/health")).json();
    const text = await (await fetch("/metrics")).text();
    const value = (name, label) => metric(text, "kvilt:" + name, label);
    const rows = {
      state: health.status, running: value("num_requests_running"), waiting: value("num_requests_waiting"),
      "KV pool used": (100 * value("kv_cache_usage_perc")).toFixed(1) + " %",
      "prompt tokens": value("prompt_tokens_total"), "generated tokens": value("generation_tokens_total"),
      "cached tokens": value("cached_tokens"), "cached runs": value("cached_runs"),
    };
    $("counters").replaceChildren(...Object.entries(rows).map(([k, v]) => {
      const box = document.createElement("div"), t = document.createElement("dt"), d = document.createElement("dd");
      t.textContent = k; d.textContent = v; box.append(t, d);
      return box;
    }));
    bar("total", Object.fromEntries(kinds.map(k => [k, value("prompt_tokens_by_source_total", `source="${k}"`)])));
    if (!$("policy").dataset.known) await describe();
  } catch (e) { $("model").textContent = "no connection: " + e.message; }
}

async function describe() {
  const reply = await fetch("/v1/models", {headers: headers()});
  if (!reply.ok) { $("model").textContent = reply.status === 401 ? "an API key is needed" : "loading"; return; }
  const model = (await reply.json()).data[0], k = model.kvilt;
  $("model").textContent = `${model.id}: ${k.arch}, context ${model.max_model_len}, ${k.backend}, ${k.threads} threads`;
  for (const name of k.policies) $("policy").add(new Option(name, name));
  $("policy").dataset.known = "1";
}

$("form").onsubmit = async event => {
  event.preventDefault();
  $("answer").textContent = "";
  const body = {messages: [{role: "user", content: $("prompt").value}], stream: true, max_tokens: Number($("tokens").value),
                stream_options: {include_usage: true}};
  if ($("policy").value) body.kvilt = {policy: $("policy").value};
  try {
    const reply = await fetch("/v1/chat/completions", {method: "POST", headers: headers(), body: JSON.stringify(body)});
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const {value, done} = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.filter(l => l.startsWith("data: {"))) {
        const chunk = JSON.parse(line.slice(6));
        if (chunk.error) throw new Error(chunk.error.message);
        if (chunk.choices[0]) $("answer").textContent += chunk.choices[0].delta.content || "";
        if (chunk.usage) {
          bar("last", chunk.usage.kvilt);
          $("lastkey").append(` ${chunk.usage.kvilt.policy}, first token after ${(1000 * chunk.usage.kvilt.ttft_s).toFixed(0)} ms`);
        }
      }
    }
  } catch (e) { $("answer").textContent += "\n" + e.message; }
  refresh();
};
$("key").onchange = refresh;
refresh();
setInterval(refresh, 5000);
</script>
</html>
)html";
  return html;
}

}  // namespace kvilt::server
