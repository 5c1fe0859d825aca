// A small agent with one tool. It runs in the sandbox with the harness `shell`: it calls the policy until the policy calls no tool any more.
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';

const { FLOE_BASE_URL, FLOE_API_KEY, FLOE_MODEL, FLOE_INSTRUCTION_FILE } = process.env;
const parameters = { type: 'object', properties: { command: { type: 'string' } }, required: ['command'] };
const tools = [{ type: 'function', function: { name: 'bash', description: 'Runs a command.', parameters } }];
const messages = [{ role: 'user', content: readFileSync(FLOE_INSTRUCTION_FILE, 'utf8') }];
for (;;) {
  const reply = await fetch(`${FLOE_BASE_URL}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${FLOE_API_KEY}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: FLOE_MODEL, messages, tools }),
  });
  if (!reply.ok) throw new Error(`the model call failed with ${reply.status}: ${await reply.text()}`);
  const { message } = (await reply.json()).choices[0];
  const calls = message.tool_calls ?? [];
  if (calls.length === 0) break;
  messages.push(message);
  for (const { id, function: call } of calls) {
    const { stdout } = spawnSync('/bin/sh', ['-c', JSON.parse(call.arguments).command], { encoding: 'utf8' });
    messages.push({ role: 'tool', tool_call_id: id, content: stdout });
  }
}
