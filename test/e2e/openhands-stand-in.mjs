#!/usr/bin/node
// A stand-in for OpenHands that implements its documented command line (OpenHands-CLI 1.16): options, variables, the first message made
// of the file, events as lines of JSON, and exit code 0 even after an error ended the conversation.
import { execSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

const { values: options } = parseArgs({
  options: {
    headless: { type: 'boolean' },
    json: { type: 'boolean' },
    'override-with-envs': { type: 'boolean' },
    file: { type: 'string', short: 'f' },
  },
});
const { LLM_MODEL, LLM_API_KEY, LLM_BASE_URL, OPENHANDS_WORK_DIR, OPENHANDS_CONVERSATIONS_DIR } = process.env;
if (!options.headless || !options.json || options.file === undefined) process.exit(2);
if (!options['override-with-envs'] || LLM_MODEL === undefined || LLM_API_KEY === undefined) process.exit(1);

const saved = join(OPENHANDS_CONVERSATIONS_DIR, '0f', 'events');
mkdirSync(saved, { recursive: true });
let count = 0;
function emitEvent(event) {
  const line = JSON.stringify({ id: `e${count}`, ...event }, null, 1).replaceAll(/\n\s*/g, ' ');
  writeFileSync(join(saved, `event-${count++}.json`), line);
  console.log(line);
}

const tools = ['terminal', 'finish'].map((name) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties: {} } },
}));
const content = `Starting this session with file context.\n\nFile path: ${options.file}\n\nFile contents:\n${readFileSync(options.file, 'utf8')}\n`;
const messages = [
  { role: 'system', content: 'You are OpenHands agent.' },
  { role: 'user', content },
];
console.log('Agent is working');
for (let finished = false; !finished; ) {
  const reply = await fetch(`${LLM_BASE_URL}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${LLM_API_KEY}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: LLM_MODEL.replace(/^openai\//, ''), messages, tools }),
  });
  const body = await reply.json();
  if (!reply.ok) {
    const { message } = body.error;
    emitEvent({ source: 'environment', code: 'LLMBadRequestError', detail: message, kind: 'ConversationErrorEvent' });
    break;
  }
  const { message } = body.choices[0];
  messages.push(message);
  for (const { id, function: called } of message.tool_calls ?? []) {
    const action = JSON.parse(called.arguments);
    emitEvent({ source: 'agent', tool_name: called.name, action, kind: 'ActionEvent' });
    finished ||= called.name === 'finish';
    const output = finished ? 'done' : execSync(action.command, { cwd: OPENHANDS_WORK_DIR }).toString();
    emitEvent({ source: 'environment', observation: { content: output }, kind: 'ObservationEvent' });
    messages.push({ role: 'tool', tool_call_id: id, content: output });
  }
  finished ||= message.tool_calls === undefined;
}
console.log('Agent finished\nGoodbye! 👋');
