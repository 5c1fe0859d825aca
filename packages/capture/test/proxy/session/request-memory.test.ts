import type { ChatMessage } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { RequestMemory } from '../../../src/proxy/session/request-memory.ts';

describe('the memory of a session between turns', () => {
  it('returns exactly the prompts that it is given, and keeps earlier ones intact', () => {
    const turn = fc.record({
      thread: fc.constantFrom('main', 'sub'),
      keep: fc.oneof(fc.constant(1_000), fc.nat(40)),
      more: fc.array(fc.nat(5), { maxLength: 30 }),
    });
    fc.assert(
      fc.property(fc.array(turn, { maxLength: 30, size: 'max' }), (turns) => {
        const memory = new RequestMemory();
        const last: Record<string, number[]> = {};
        const all: { ids: number[]; kept: Int32Array }[] = [];
        for (const { thread, keep, more } of turns) {
          const ids = [...(last[thread] ?? []).slice(0, keep), ...more];
          last[thread] = ids;
          all.push({ ids, kept: memory.prompt(thread, Int32Array.from(ids)) });
        }
        for (const { ids, kept } of all) expect([...kept]).toEqual(ids);
      }),
    );
  });

  it('stores prompts in one buffer as long as each extends the last', () => {
    const memory = new RequestMemory();
    const ids = Array.from({ length: 100 }, (_, i) => i);
    const first = memory.prompt('main', Int32Array.from(ids.slice(0, 80)));
    const second = memory.prompt('main', Int32Array.from(ids.slice(0, 90)));
    const third = memory.prompt('main', Int32Array.from(ids));
    expect(third.buffer).toBe(second.buffer);
    expect([...first, ...second, ...third]).toEqual([...ids.slice(0, 80), ...ids.slice(0, 90), ...ids]);
    expect(memory.prompt('main', Int32Array.of(1)).buffer).not.toBe(third.buffer);
  });

  it('returns the same message objects when a request repeats them, with the texts of the request', () => {
    const memory = new RequestMemory();
    const messages = (): ChatMessage[] => [
      { role: 'user', content: 'a' },
      { role: 'assistant', content: 'b' },
    ];
    const first = memory.request('main', messages(), []);
    const second = memory.request('main', [...messages(), { role: 'user', content: 'c' }], []);
    expect(second.messages[1]).toBe(first.messages[1]);
    expect(second.tools).toBe(first.tools);
    expect(second.messageTexts).toEqual(second.messages.map((message) => JSON.stringify(message)));
    const edited = memory.request('main', [{ role: 'user', content: 'A' }, ...messages().slice(1)], []);
    expect(edited.messages).toEqual([
      { role: 'user', content: 'A' },
      { role: 'assistant', content: 'b' },
    ]);
  });
});
