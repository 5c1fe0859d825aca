import { execFileSync } from 'node:child_process';
import { text } from 'node:stream/consumers';
import OpenAI from 'openai';

const bash = ({ command }) => execFileSync('sh', ['-c', command], { encoding: 'utf8' });
const parameters = { type: 'object', properties: { command: { type: 'string' } }, required: ['command'] };
const tools = [{ type: 'function', function: { name: 'bash', parameters } }];
const client = new OpenAI(); // OPENAI_BASE_URL, OPENAI_API_KEY
const messages = [{ role: 'user', content: await text(process.stdin) }];
for (;;) {
  const { choices } = await client.chat.completions.create({ model: process.env.FLOE_MODEL, messages, tools });
  const { message } = choices[0];
  messages.push(message); // with its `reasoning_content`
  if (!message.tool_calls) break;
  for (const { id, function: called } of message.tool_calls) {
    messages.push({ role: 'tool', tool_call_id: id, content: bash(JSON.parse(called.arguments)) });
  }
}
