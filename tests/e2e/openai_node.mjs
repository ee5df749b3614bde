// Asks one question through the official client for Node: as JSON, then as a stream.
// usage: node openai_node.mjs BASE_URL QUESTION; finds "openai" by NODE_PATH. Prints JSON.
import { createRequire } from "node:module";

const { OpenAI } = createRequire(import.meta.url)("openai");
const [baseURL, question] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "sk-test", maxRetries: 0 });
const request = { model: "m", messages: [{ role: "user", content: question }] };

const whole = await client.chat.completions.create(request);
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
console.log(
  JSON.stringify([
    { text: whole.choices[0].message.content, tokens: whole.usage.total_tokens },
    { text, tokens: usage.total_tokens },
  ]),
);
