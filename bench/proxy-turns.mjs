// What the client of bench/proxy.mjs sends, and how it measures it.
import { performance } from 'node:perf_hooks';

export const CHAT_PATH = '/v1/chat/completions';

/** A turn in the middle of a coding session: history up, all prompt ids and some 300 sampled tokens down. */
export const TURN = { requestBytes: 62_000, promptIds: 16_000, responseIds: 300 };
export const SMALL = { requestBytes: 350, promptIds: 60, responseIds: 20 };
/** Of one streamed chunk; the first comes alone. */
export const CHUNK_IDS = 16;

/** A session that the client carries on: it has half of a turn's history behind it when it begins, and half as much again at its end. */
const SESSION = { turns: 20, firstBytes: 44_000, resultChars: 380 };

const TOOL = 'def f(x):\n    return "a\\tb"  # some code with "quotes"\n';
const HEADERS = { 'content-type': 'application/json' };

function historyOf(bytes, name) {
  const messages = [{ role: 'system', content: `You are an agent in a repository. ${name}` }];
  for (let i = 0; JSON.stringify(messages).length < bytes - 2_200; i++) {
    const call = {
      id: `call_${i}`,
      type: 'function',
      function: { name: 'bash', arguments: `{"command":"cat f${i}.py"}` },
    };
    const reasoning_content = 'Hm, which file?';
    messages.push({ role: 'assistant', content: 'Let me look.', reasoning_content, tool_calls: [call] });
    messages.push({ role: 'tool', tool_call_id: call.id, content: TOOL.repeat(30) });
  }
  return messages;
}

/** Makes request bodies that differ in their last few characters, so that each call is a request of its own. */
export function bodiesOf({ requestBytes }) {
  const messages = historyOf(requestBytes, '');
  const head = JSON.stringify({ model: 'policy', max_tokens: 512, messages }).slice(0, -2);
  return (nonce) => `${head},{"role":"user","content":"go on ${nonce}"}]}`;
}

/** Sends one body and reads its reply to the end; rejects for any status but 200. */
export async function send(client, path, body, signal) {
  const reply = await client.request({ method: 'POST', path, headers: HEADERS, body, signal });
  const text = await reply.body.text();
  if (reply.statusCode !== 200) throw new Error(`status ${reply.statusCode}: ${text.slice(0, 300)}`);
  return text;
}

/** `calls` requests over `connections`, in turn to each of the paths. Latencies in ms. */
export async function round(client, paths, body, { connections, calls }) {
  const latencies = [];
  let next = 0;
  const worker = async () => {
    while (next < calls) {
      const n = next++;
      const text = body(n);
      const startMs = performance.now();
      await send(client, paths[n % paths.length], text);
      latencies.push(performance.now() - startMs);
    }
  };
  await Promise.all(Array.from({ length: connections }, worker));
  return latencies;
}

/** A conversation that goes on from its own replies: each has a call, whose result is the next request's last message. */
export function conversation(name) {
  const messages = historyOf(SESSION.firstBytes, `Task ${name}.`);
  messages.push({ role: 'user', content: 'go on' });
  return {
    body: () => JSON.stringify({ model: 'policy', max_tokens: 512, messages }),
    heard(text) {
      const { message } = JSON.parse(text).choices[0];
      const result = `${messages.length}: ${TOOL.repeat(20)}`.slice(0, SESSION.resultChars);
      messages.push(message, { role: 'tool', tool_call_id: message.tool_calls[0].id, content: result });
    },
  };
}

/** One conversation for each path, `connections` at a time. Latencies in ms. */
export async function converse(client, paths, { connections }) {
  const latencies = [];
  let next = 0;
  const worker = async () => {
    while (next < paths.length) {
      const n = next++;
      const talk = conversation(n);
      for (let turn = 0; turn < SESSION.turns; turn++) {
        const body = talk.body();
        const startMs = performance.now();
        const text = await send(client, paths[n], body);
        latencies.push(performance.now() - startMs);
        talk.heard(text);
      }
    }
  };
  await Promise.all(Array.from({ length: connections }, worker));
  return latencies;
}

/** How many conversations make up about so many calls. */
export const conversationsOf = (calls) => Math.ceil(calls / SESSION.turns);
export const callsOf = (conversations) => conversations * SESSION.turns;
