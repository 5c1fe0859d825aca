import { execFileSync } from 'node:child_process';
import { text } from 'node:stream/consumers';
import OpenAI from 'openai';

const bash = ({ command }) => execFileSync('sh', ['-c', command], { encoding: 'utf8' });
const parameters = { type: 'object', properties: { command: { type: 'string' } }, required: ['command'] };
const tools = [{ type: 'function', name: 'bash', parameters, strict: false }];
const client = new OpenAI(); // OPENAI_BASE_URL, OPENAI_API_KEY
let input = await text(process.stdin);
for (let previous_response_id; input.length > 0; ) {
  const params = { model: process.env.FLOE_MODEL, input, tools, previous_response_id };
  const { id, output } = await client.responses.create(params);
  previous_response_id = id;
  input = output
    .filter(({ type }) => type === 'function_call')
    .map((call) => ({
      type: 'function_call_output',
      call_id: call.call_id,
      output: bash(JSON.parse(call.arguments)),
    }));
}
