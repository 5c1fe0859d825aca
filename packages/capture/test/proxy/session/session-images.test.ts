import {
  type ChatMessage,
  type CompletionRecord,
  completionRecordSchema,
  type Trajectory,
  trajectorySchema,
} from '@floe-rl/core/schema';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { ProxySession } from '../../../src/proxy/session/session.ts';
import { chooseBase, decodeCompletion, encodeCompletion } from '../../../src/tokens/codec.ts';
import type { Completion } from '../../../src/tokens/completion.ts';
import { encodeRecords } from '../../../src/tokens/records.ts';
import { buildTrajectory } from '../../../src/tokens/trajectory.ts';
import { json, vllmReply } from '../../engines/scripted-server.ts';
import { chatBody, Rig } from '../rig.ts';

const TURNS = 50;
const IMAGE = `data:image/png;base64,${Buffer.alloc(1.5 * 2 ** 20, 'image').toString('base64')}`;
/** Maximum number of characters of all texts of a session except the image. It is less than a second copy of the image would have. */
const OTHER_CHARS = IMAGE.length / 2;

type Shown = (turn: number) => readonly ChatMessage[];

const image = { type: 'image_url', image_url: { url: IMAGE } } as const;
const text = (words: string) => ({ type: 'text', text: words }) as const;

/** Messages of an agent whose first message always contains the image. */
const keepsImage: Shown = (turn) => [
  { role: 'user', content: [text('Describe the picture.'), image] },
  ...Array.from({ length: turn }, (_, index): ChatMessage[] => [
    { role: 'assistant', content: 'Hello.' },
    { role: 'user', content: `question ${index}` },
  ]).flat(),
];

/** Messages of an agent that moves the image to its newest message with each call. */
const movesImage: Shown = (turn) => [
  ...Array.from({ length: turn }, (_, index): ChatMessage[] => [
    { role: 'user', content: `question ${index}` },
    { role: 'assistant', content: 'Hello.' },
  ]).flat(),
  { role: 'user', content: [text(`question ${turn}`), image] },
];

/** Returns the total length of all different strings in an object and in all objects that it refers to. */
function heldChars(root: unknown): number {
  const texts = new Set<string>();
  const seen = new Set<object>();
  const open: unknown[] = [root];
  while (open.length > 0) {
    const value = open.pop();
    if (typeof value === 'string') texts.add(value);
    if (typeof value !== 'object' || value === null || seen.has(value) || ArrayBuffer.isView(value)) continue;
    seen.add(value);
    if (value instanceof Map) open.push(...value.keys(), ...value.values());
    else if (value instanceof Set) open.push(...value);
    else open.push(...Object.values(value));
  }
  return [...texts].reduce((sum, { length }) => sum + length, 0);
}

/** Returns the bytes of the session's records in the journal. */
function journalRecords(completions: readonly Completion[]): Buffer[] {
  return completions.map((one, index) => encodeCompletion(one, chooseBase(one, completions.slice(0, index))));
}

function trajectoryOf(completions: readonly Completion[]): Buffer {
  const request = { completions, reward: 1, error: null, metadata: {}, status: 'COMPLETED' as const };
  return buildTrajectory({ ...request, spec: { strategy: 'per_request', config: {} } }).json;
}

/** Returns messages in which each reference is replaced by the URL of its image. */
function shown(messages: readonly ChatMessage[], images: Trajectory['images']): unknown {
  return JSON.parse(JSON.stringify(messages), (_, value) =>
    typeof value === 'string' ? (images[value] ?? value) : value,
  );
}

let rig: Rig;
let session: ProxySession;
let key: string;
/** The messages of each request that reached the engine. */
let received: unknown[];

async function open(): Promise<void> {
  rig = await Rig.start();
  key = rig.key();
  session = await rig.open({ key });
  received = [];
  rig.server.onChat = (request) => {
    received.push((request.body as { messages: unknown }).messages);
    const turn = received.length;
    const promptIds = Array.from({ length: 4 * turn }, (_, index) => index);
    json(request.response, 200, vllmReply(request, { promptIds }));
  };
}

async function run(messagesOf: Shown): Promise<void> {
  await open();
  for (let turn = 0; turn < TURNS; turn++) {
    expect((await rig.chat(key, { messages: messagesOf(turn) }).reply).status).toBe(200);
  }
}

describe.each([
  ['keeps an image in its history', keepsImage],
  ['shows an image in another message with each call', movesImage],
])('a session of 50 turns that %s', (_, messagesOf) => {
  let completions: readonly Completion[];
  beforeAll(async () => {
    await run(messagesOf);
    completions = session.completions();
  });
  afterAll(() => rig.stop());

  it('holds the image once in memory, in the journal and in each part of its result', () => {
    const { deps: _deps, ...own } = session as unknown as Record<string, unknown>;
    const sizes = {
      memory: heldChars(own),
      journal: Buffer.concat(journalRecords(completions)).length,
      trajectory: trajectoryOf(completions).length,
      records: encodeRecords(completions).length,
    };
    for (const size of Object.values(sizes)) {
      expect(size).toBeGreaterThanOrEqual(IMAGE.length);
      expect(size).toBeLessThan(IMAGE.length + OTHER_CHARS);
    }
  });

  it('sends the image to the engine with every call', () => {
    expect(received).toEqual(Array.from({ length: TURNS }, (_, turn) => messagesOf(turn)));
  });

  it('delivers traces and completions from which the messages of every call can be read', () => {
    const trajectory = trajectorySchema.parse(JSON.parse(trajectoryOf(completions).toString()));
    expect(trajectory.traces.map(({ prompt_messages }) => shown(prompt_messages, trajectory.images))).toEqual(received);

    const records: CompletionRecord[] = JSON.parse(encodeRecords(completions).toString());
    const images: Trajectory['images'] = {};
    const messages = new Map<string, ChatMessage[]>();
    for (const record of records.map((one) => completionRecordSchema.parse(one))) {
      const { base, keep, messages: added } = record.request;
      Object.assign(images, record.request.images);
      messages.set(record.completion_id, [...(messages.get(base ?? '') ?? []).slice(0, keep), ...added]);
    }
    expect([...messages.values()].map((one) => shown(one, images))).toEqual(received);
  });

  it('is read from the journal as it was recorded', () => {
    const read = new Map<string, Completion>();
    for (const record of journalRecords(completions)) {
      const completion = decodeCompletion(record, (id) => read.get(id));
      read.set(completion.completionId, completion);
    }
    expect([...read.values()]).toEqual(completions);
  });
});

describe('the images of a session', () => {
  beforeEach(open);
  afterEach(() => rig.stop());

  const one = (url: string) => ({ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }] }] });

  it('are not kept for calls that failed', async () => {
    rig.server.onChat = ({ response }) => json(response, 400, { error: { message: 'no images here' } });
    const before = heldImages();
    for (let call = 0; call < 3; call++) {
      expect((await rig.chat(key, one(`data:image/png;base64,${call}AAA`)).reply).status).toBe(400);
    }
    expect(heldImages()).toBe(before);
  });

  it('cannot be named by a request that did not contain them', async () => {
    await rig.chat(key, one(IMAGE)).reply;
    const content = session.completions()[0]?.request.messages[0]?.content;
    const [part] = typeof content === 'object' && content !== null ? content : [];
    const reference = part?.type === 'image_url' ? part.image_url.url.slice(0, 80) : '';
    expect(reference).toMatch(/^floe-image:[0-9a-f]{64}$/);
    await rig.chat(key, one(reference)).reply;
    expect(received[1]).toEqual(chatBody(one(reference)).messages);
  });

  it('that are elsewhere keep their URLs', async () => {
    await rig.chat(key, one('https://example.com/a.png')).reply;
    expect(session.completions()[0]?.request.messages).toEqual(one('https://example.com/a.png').messages);
  });

  function heldImages(): number {
    return session.record.images.storedCount;
  }
});
