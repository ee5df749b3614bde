// Asks one question through the official client for Node: as JSON, then as a stream; or, with a
// third argument, as a stream only, as often as it says.
// usage: node openai_node.mjs BASE_URL QUESTION [TIMES]; finds "openai" by NODE_PATH. Prints JSON.
import { createRequire } from "node:module";

const { OpenAI } = createRequire(import.meta.url)("openai");
const [baseURL, question, times] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "sk-test", maxRetries: 0 });
const request = { model: "m", messages: [{ role: "user", content: question }] };

async function whole() {
  const answer = await client.chat.completions.create(request);
  return { text: answer.choices[0].message.content, tokens: answer.usage.total_tokens };
}

async function streamed() {
  const stream = await client.chat.completions.create({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  return { text, tokens: usage.total_tokens };
}

const answers = [];
if (times === undefined) {
  answers.push(await whole());
  answers.push(await streamed());
} else {
  for (let asked = 0; asked < Number(times); asked++) answers.push(await streamed());
}
console.log(JSON.stringify(answers));
