// Creates the inputs that the fuzzer sends, and parses the replies. Each input is derived from a number only, so that a run can be repeated
// with its seed.

import type { DialectName } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { Dialect } from '#capture/dialects/dialect';

/** Reply texts that an incorrect encoder of server-sent events would corrupt. */
export const NASTY_TEXTS: readonly string[] = [
  'plain',
  'a\n\ndata: {"x":1}\n\nevent: error\n\n: b',
  'cr\rlf\r\ncrlf\r\n\r\n',
  '\u2028line\u2029separators\u0085\ufeff\0\x1b[0m',
  'lone \ud800 surrogates \udfff',
  '😀 漢字 \u0301 \u202e',
  'data: [DONE]\n\n',
  '</think> <|im_end|> {"a": "\\ud83d"}',
];

/** Returns path and query of a streamed generation request in this dialect. */
export function generationPath({ name, routes }: Dialect): string {
  const candidates = routes.filter(({ kind }) => kind === 'generate');
  const route = candidates.find(({ stream }) => stream === true) ?? candidates[0];
  if (route === undefined) throw new Error(`${name} has no route for generation`);
  const path = route.path.replace('{model}', 'policy');
  return route.stream === undefined ? path : `${path}?alt=sse`;
}

/** The reply that a request demands from the stub engine: the text of {@link NASTY_TEXTS} at `index`, repeated `times` times. */
export type ReplyOrder = { readonly index: number; readonly times: number };

/**
 * Returns a streamed request of one message that makes the stub engine return this reply. Requests with different values of `nonce` differ.
 */
export function orderReply(name: DialectName, { index, times }: ReplyOrder, nonce: string | number): object {
  const text = `say ${index} ${times} #${nonce}`;
  switch (name) {
    case 'anthropic':
      return { model: 'policy', max_tokens: 99, stream: true, messages: [{ role: 'user', content: text }] };
    case 'openai_chat':
      return { model: 'policy', stream: true, messages: [{ role: 'user', content: text }] };
    case 'openai_responses':
      return { model: 'policy', stream: true, input: text };
    case 'gemini':
      return { contents: [{ role: 'user', parts: [{ text }] }] };
  }
}

const anthropicEvent = z.object({ delta: z.object({ text: z.string().optional() }).optional() });
const chatEvent = z.object({
  choices: z.array(z.object({ delta: z.object({ content: z.string().nullish() }).optional() })).optional(),
});
const responsesEvent = z.object({ type: z.string(), delta: z.unknown().optional() });
const geminiPart = z.object({ text: z.string().optional(), thought: z.boolean().optional() });
const geminiEvent = z.object({
  candidates: z.array(z.object({ content: z.object({ parts: z.array(geminiPart).optional() }).optional() })).optional(),
});

/** For each dialect, returns the text in one event of a streamed reply. */
const EVENT_TEXT: Readonly<Record<DialectName, (event: unknown) => string>> = {
  anthropic: (event) => anthropicEvent.parse(event).delta?.text ?? '',
  openai_chat: (event) => chatEvent.parse(event).choices?.[0]?.delta?.content ?? '',
  openai_responses: (event) => {
    const { type, delta } = responsesEvent.parse(event);
    return type === 'response.output_text.delta' && typeof delta === 'string' ? delta : '';
  },
  gemini: (event) => {
    const parts = geminiEvent.parse(event).candidates?.[0]?.content?.parts ?? [];
    return parts.map(({ text = '', thought }) => (thought === true ? '' : text)).join('');
  },
};

/** Returns the text of a streamed reply, parsed according to the standard for server-sent events. */
export function streamText(name: DialectName, stream: string): string {
  let text = '';
  let data: string[] = [];
  for (const line of stream.split(/\r\n|\r|\n/)) {
    if (line === '') {
      if (data.length > 0 && data[0] !== '[DONE]') text += EVENT_TEXT[name](JSON.parse(data.join('\n')));
      data = [];
    } else if (line.startsWith('data:')) {
      data.push(line.slice(line[5] === ' ' ? 6 : 5));
    }
  }
  return text;
}

export function headersOf(n: number): Record<string, string> {
  if (n % 53 === 0) return { 'content-type': 'text/plain' };
  if (n % 59 === 0) return { 'content-type': 'application/json; charset=utf-16' };
  return n % 61 === 0 ? {} : { 'content-type': 'application/json' };
}

/** Functions that damage the JSON text of a request body. The number `n` selects the place of the damage. */
const DAMAGES: readonly ((text: string, n: number) => string | Buffer)[] = [
  (text, n) => text.slice(0, n % (text.length + 1)),
  (text, n) => {
    const bytes = Buffer.from(text);
    if (bytes.length > 0) bytes[n % bytes.length] = 0x80 | (n & 0x7f);
    return bytes;
  },
  (text) => text.replace(/"model"/g, '"model":5,"messages":[],"model"').replace(/"role"/g, '"role":"x","role"'),
  (text) => text.replace(/:\s*\d+/g, ':1e400').replace(/true|false/g, '-123456789012345678901234567890'),
  (text, n) => text.replace(/\{/, `{"deep":${'['.repeat(n % 20_000)}${']'.repeat(n % 20_000)},`),
  (text) => `\ufeff${text}`,
  (text, n) => `${text}${'\0'.repeat(n % 5)}`,
  (text) => text.replace(/"([^"]{4,})"/, '"\\ud800$1"'),
  (text, n) => text.slice(n % 7) + text,
];

/**
 * Returns the text of a body as it is sent, damaged for every third `n`. The other bodies are sent as they are, because their content is
 * already wrong.
 */
export function damaged(body: unknown, n: number): string | Buffer {
  const text = JSON.stringify(body) ?? '';
  const damage = n % 3 === 0 ? DAMAGES[(n / 3) % DAMAGES.length] : undefined;
  return damage === undefined ? text : damage(text, n);
}

const chatStart = (rest: string): string => `{"model":"policy","messages":[{"role":"user","content":${rest}`;

/** Functions that create a request body of about `bytes` bytes that is especially slow to parse and check. */
export const HEAVY_BODIES: Readonly<Record<string, (bytes: number) => string>> = {
  'one text': (bytes) => `${chatStart('"')}${'x'.repeat(bytes - 100)}"}]}`,
  'one CJK text': (bytes) => `${chatStart('"')}${'漢'.repeat((bytes - 100) / 3)}"}]}`,
  'one escaped text': (bytes) => `${chatStart('"')}${'\\n\\"'.repeat((bytes - 100) / 4)}"}]}`,
  'messages of a kilobyte': (bytes) => {
    const message = `{"role":"user","content":"${'y'.repeat(1_000)}"}`;
    return `{"model":"policy","messages":[${`${message},`.repeat((bytes - 100) / (message.length + 1) - 1)}${message}]}`;
  },
  'very many small messages': () => {
    const message = '{"role":"user","content":"y"}';
    return `{"model":"policy","messages":[${`${message},`.repeat(65_000)}${message}]}`;
  },
  'a million keys': () => `${chatStart('"x"}]')}${Array.from({ length: 1e6 }, (_, i) => `,"k${i}":${i}`).join('')}}`,
  'empty arrays': (bytes) => `[${'[],'.repeat((bytes - 10) / 3)}[]]`,
  numbers: (bytes) => `[${'1,'.repeat((bytes - 10) / 2)}1]`,
};
