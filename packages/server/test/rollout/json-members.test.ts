import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { jsonElements, jsonMembers } from '../../src/rollout/json-members.ts';

const json = (value: unknown, spaces?: number): Buffer => Buffer.from(JSON.stringify(value, null, spaces));
const parsed = (bytes: Buffer): unknown => JSON.parse(bytes.toString());

describe('jsonMembers', () => {
  it('returns the bytes of each value as written', () => {
    const members = jsonMembers(Buffer.from(' {"a" : 1.0, "b\\"}":[{"c":"],}"}] ,"d":{} }'));
    expect([...members].map(([key, value]) => [key, value.toString()])).toEqual([
      ['a', '1.0'],
      ['b"}', '[{"c":"],}"}]'],
      ['d', '{}'],
    ]);
  });

  it('finds the members of every object and the elements of every array', () => {
    const spaces = fc.constantFrom(undefined, 2);
    fc.assert(
      fc.property(fc.dictionary(fc.string(), fc.jsonValue()), spaces, (value, indent) => {
        const members = jsonMembers(json(value, indent));
        expect([...members].map(([key, bytes]) => [key, parsed(bytes)])).toEqual(
          Object.entries(parsed(json(value)) as object),
        );
      }),
    );
    fc.assert(
      fc.property(fc.array(fc.jsonValue()), spaces, (value, indent) => {
        expect(jsonElements(json(value, indent)).map(parsed)).toEqual(parsed(json(value)));
      }),
    );
  });
});
