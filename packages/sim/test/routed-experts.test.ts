import { describe, expect, it } from 'vitest';
import type { LedgerEntry } from '../src/index.ts';
import { expertsOf, ROUTED_LAYERS, ROUTED_TOP_K } from '../src/routed-experts.ts';
import { postJson, simStarter, TOOLS, USER } from './sim-client.ts';
import { assembled, type Choice, type Chunk, events, post } from './sse.ts';

const start = simStarter({ scaleOut: true, routedExperts: true });
const body = { messages: [USER], tools: TOOLS, seed: 5, return_token_ids: true };

type Routed = Choice & { routed_experts: string };
type RoutedObject = { data: string; shape: number[]; start: number; dtype: string };

/** Parses an .npy file as NumPy's documentation describes the format. */
function readNpy(base64: string): { shape: number[]; values: number[] } {
  const file = Buffer.from(base64, 'base64');
  expect(file.subarray(0, 8)).toEqual(Buffer.from([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0]));
  const length = file.readUInt16LE(8);
  expect((10 + length) % 64).toBe(0);
  const header = file.subarray(10, 10 + length).toString('latin1');
  expect(header).toMatch(/^\{'descr': '\|u1', 'fortran_order': False, 'shape': \((\d+), 2, 2\), \} *\n$/);
  const rows = Number(/\((\d+),/.exec(header)?.[1]);
  return { shape: [rows, 2, 2], values: [...file.subarray(10 + length)] };
}

function expected(entry: LedgerEntry | undefined, from: number): number[] {
  const ids = [...(entry?.prompt_ids ?? []), ...(entry?.response_ids ?? [])];
  return ids
    .slice(0, -1)
    .flatMap((id, position) => [0, 1].flatMap((layer) => (position < from ? [] : expertsOf(position, id, layer))));
}

describe('routed experts', () => {
  it('are two different experts per token and layer, and differ between positions', () => {
    const observed = new Set<string>();
    for (let position = 0; position < 50; position++) {
      for (let layer = 0; layer < ROUTED_LAYERS; layer++) {
        const experts = expertsOf(position, 7, layer);
        expect(new Set(experts).size).toBe(ROUTED_TOP_K);
        expect(experts.every((expert) => expert >= 0 && expert < 64)).toBe(true);
        observed.add(experts.join());
      }
    }
    expect(observed.size).toBeGreaterThan(80);
  });

  it.each([0, 11])('are sent with a chat as an .npy file from prompt row %i on, streamed or not', async (first) => {
    const sim = await start();
    const request = { ...body, routed_experts_prompt_start: first };
    const plain = (await postJson<Chunk>(`${sim.url}/v1/chat/completions`, request)).body.choices[0] as Routed;
    const streamed = assembled(
      events(await (await post(`${sim.url}/v1/chat/completions`, { ...request, stream: true })).text()),
    ) as unknown as Routed;
    const [entry] = sim.ledger.entries();
    const wanted = expected(entry, first);
    expect(readNpy(plain.routed_experts)).toEqual({ shape: [wanted.length / 4, 2, 2], values: wanted });
    expect(wanted.length / 4).toBe((entry?.prompt_ids.length ?? 0) + (entry?.response_ids.length ?? 0) - 1 - first);
    expect(streamed.routed_experts).toBe(plain.routed_experts);
  });

  it('are sent with token generation in either form, only when enabled', async () => {
    const request = { token_ids: [4, 5, 6], sampling_params: { routed_experts_prompt_start: 2, seed: 1 } };
    const path = '/inference/v1/generate';
    const npy = await start();
    const file = await postJson<{ choices: { routed_experts: string }[] }>(`${npy.url}${path}`, request);
    const wanted = expected(npy.ledger.entries()[0], 2);
    expect(readNpy(file.body.choices[0]?.routed_experts ?? '').values).toEqual(wanted);
    const object = await start({ routedExpertsForm: 'object' });
    const bare = await postJson<{ choices: { routed_experts: RoutedObject }[] }>(`${object.url}${path}`, request);
    const experts = bare.body.choices[0]?.routed_experts;
    expect(experts).toMatchObject({ shape: [wanted.length / 4, 2, 2], start: 2, dtype: 'uint8' });
    expect([...Buffer.from(experts?.data ?? '', 'base64')]).toEqual(wanted);
    const off = await start({ routedExperts: false });
    const none = await postJson<{ choices: object[] }>(`${off.url}${path}`, request);
    expect(none.body.choices[0]).toMatchObject({ routed_experts: null });
    const chat = await postJson<Chunk>(`${off.url}/v1/chat/completions`, body);
    expect(chat.body.choices[0]).toMatchObject({ routed_experts: null });
  });
});
