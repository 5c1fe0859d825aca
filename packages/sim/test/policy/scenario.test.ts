import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeError } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { Policy } from '../../src/policy/policy.ts';
import { loadScenarios, parseScenarios } from '../../src/policy/scenario.ts';
import { WeightStore } from '../../src/policy/weights.ts';
import { bundledVocabulary } from '../../src/vocabulary.ts';

const withReply = (reply: unknown, name = 's'): unknown => ({ scenarios: [{ name, rules: [{ reply }] }] });

function failure(act: () => unknown): FloeError {
  try {
    act();
  } catch (thrown) {
    if (FloeError.is(thrown)) return thrown;
    throw thrown;
  }
  throw new Error('nothing was thrown');
}

const paths = (error: FloeError): string[] => (error.details.issues as { path: string }[]).map(({ path }) => path);

describe('a scenario file', () => {
  it('is refused with the path of an invalid field at any depth', () => {
    const reply = [
      { choice: { id: 'a', options: [{ reply: [{ text: 'x' }] }, { logit: 'high', reply: [{ thnik: 3 }] }] } },
    ];
    const error = failure(() => parseScenarios(withReply(reply), 'file x.yaml'));
    expect(error.code).toBe('schema_violation');
    expect(error.message).toContain('file x.yaml');
    expect(paths(error)).toContain('scenarios.0.rules.0.reply.0.choice.options.1.logit');
    expect(paths(error)).toContain('scenarios.0.rules.0.reply.0.choice.options.1.reply.0');
  });

  it.each([
    [[{ text: 'a', think: 3 }], 'reply.0'],
    [[{}], 'reply.0'],
    [[{ think: { text: ' padded' } }], 'reply.0.think.text'],
    [[{ think: { text: 'a</think>b' } }], 'reply.0.think.text'],
    [[{ call: { arguments: {} } }], 'reply.0.call.tool'],
    [[{ choice: { id: 'a', options: [{ reply: [] }] } }], 'reply.0.choice.options'],
    [[{ raw: '' }], 'reply.0.raw'],
    [[{ raw: 'a<|im_end|>b' }], 'reply.0.raw'],
  ])('refuses %j at %s', (reply, path) => {
    expect(paths(failure(() => parseScenarios(withReply(reply), 'f')))).toContain(`scenarios.0.rules.0.${path}`);
  });

  it('refuses an invalid regular expression', () => {
    const file = { scenarios: [{ name: 's', match: { regex: '(' }, rules: [{ reply: [{ text: 'x' }] }] }] };
    expect(paths(failure(() => parseScenarios(file, 'f')))).toEqual(['scenarios.0.match.regex']);
  });

  it.each([
    ['thinking after text', [{ text: 'a' }, { think: 3 }], /rules\.0\.reply\.1: thinking must be the first/],
    [
      'text after a call',
      [{ call: { tool: 't' } }, { text: 'a' }],
      /rules\.0\.reply\.1: only calls and raw text may follow a call/,
    ],
    ['a call after raw text', [{ raw: 'a' }, { call: { tool: 't' } }], /rules\.0\.reply\.1: only raw text may follow/],
    ['thinking after raw text', [{ raw: 'a' }, { think: 3 }], /only raw text may follow/],
    [
      'more leaves than the limit',
      Array.from({ length: 10 }, (_, i) => ({
        choice: { id: `c${i}`, options: [{ reply: [{ text: 'a' }] }, { reply: [{ text: 'b' }] }] },
      })),
      /more than 512 replies/,
    ],
  ])('refuses %s when the policy is created', (_, reply, words) => {
    const scenarios = parseScenarios(withReply(reply), 'f');
    const error = failure(() => new Policy(bundledVocabulary(), scenarios, 'append_only'));
    expect(error.code).toBe('schema_violation');
    expect(error.message).toMatch(words);
  });

  it('refuses a choice id with two sets of logits and a repeated name', () => {
    const choice = (logit: number) => ({
      choice: { id: 'c', options: [{ logit, reply: [] }, { reply: [{ text: 'b' }] }] },
    });
    const twice = parseScenarios(withReply([choice(0), choice(1)]), 'f');
    expect(failure(() => new WeightStore(twice, 'v0')).message).toMatch(/choice c appears twice/);
    const [one] = parseScenarios(withReply([{ text: 'x' }]), 'f');
    expect(failure(() => new WeightStore([one, one] as never, 'v0')).message).toMatch(/name is used twice/);
  });

  it('is read as YAML or JSON, and the error names an unreadable file', async () => {
    const path = join(tmpdir(), `floe-scenario-${process.pid}.json`);
    await writeFile(path, JSON.stringify(withReply([{ think: 3 }])));
    const examples = ['examples/scenarios/failing-test.yaml', 'examples/scenarios/sums.yaml'];
    const scenarios = await loadScenarios([...examples, path]);
    expect(scenarios.map(({ name }) => name)).toEqual(['failing-test', 'sums', 's']);
    expect(scenarios[2]?.rules[0]?.reply[0]?.think).toEqual({ text: '', noise: 3 });
    await expect(loadScenarios(['no/such.yaml'])).rejects.toThrow(/scenario file no\/such\.yaml/);
  });
});

describe('the weight store', () => {
  const scenarios = parseScenarios(
    withReply([{ choice: { id: 'c', options: [{ logit: 1, reply: [] }, { reply: [{ text: 'b' }] }] } }]),
    'f',
  );

  it('applies overrides to the current logits and restores an earlier version', () => {
    const store = new WeightStore(scenarios, 'v0');
    store.update('v1', { s: { c: [3, 2] } });
    expect(store.current.logits).toEqual({ s: { c: [3, 2] } });
    store.update('v0');
    expect(store.current.logits).toEqual({ s: { c: [1, 0] } });
    expect(store.current.version).toBe('v0');
  });

  it('refuses a known version with other logits, unknown choices and wrong lengths', () => {
    const store = new WeightStore(scenarios, 'v0');
    expect(failure(() => store.update('v0', { s: { c: [9, 9] } })).code).toBe('conflict');
    expect(failure(() => store.update('v1', { s: { d: [1, 2] } })).message).toContain('logits.s.d');
    expect(failure(() => store.update('v1', { s: { c: [1] } })).message).toContain('has 1 logits');
    expect(store.current.version).toBe('v0');
  });

  it('relabels without changing a probability', () => {
    const store = new WeightStore(scenarios, 'v0');
    const before = store.current;
    expect(store.relabel('v1')).toEqual({ ...before, version: 'v1' });
    expect(failure(() => store.relabel('v0')).code).toBe('conflict');
  });
});
