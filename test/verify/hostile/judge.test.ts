import { gzipSync } from 'node:zlib';
import type { SessionResult } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { Trainer } from '../../../verify/faults/trainer.ts';
import type { Attack, Target } from '../../../verify/hostile/attack.ts';
import { attacksOn } from '../../../verify/hostile/attacks.ts';
import { judgeAttack, judgeNeighbour } from '../../../verify/hostile/judge.ts';

const target: Target = {
  mark: 'mark',
  secrets: ['the secret of the host, which is long'],
  secretDir: '/host',
  stateDir: '/state',
  serviceDir: '/service',
  pids: [1000],
  ports: { server: 1 },
  abstractSocket: 'socket',
  liveKey: 'live',
  endedKey: 'ended',
  image: '/image',
};

const attack: Attack = {
  name: 'does something',
  kind: 'sandbox',
  command: 'true',
  holds: { outcomes: ['completed'], reward: 0, failures: ['patch_failed'], says: ['probe ended'], completions: 1 },
};

/** Result of a session whose attack had no effect. */
const held = {
  session_id: 'ses_1',
  outcome: 'completed',
  reward: 0,
  attempt: 1,
  error: null,
  reward_details: { failure: 'patch_failed' },
  completion_count: 1,
  agent: { exit_code: 0, turns: 1, stdout_tail: 'probe ended\n', stderr_tail: '', isolation: 'namespaces' },
  artifacts: null,
  audit: { tokens: { sampled: 0, trained: 0, excluded: {}, constrained: 0 } },
  trajectory: null,
} as unknown as SessionResult;

/** Returns the findings of the judge for the result {@link held} with `changes`. `files` is the content of the artifacts. */
function judge(changes: object, files = ''): Promise<string[]> {
  const trainer = { client: { artifacts: async () => gzipSync(files) } } as unknown as Trainer;
  return judgeAttack(attack, { ...held, ...changes } as SessionResult, trainer, target, []);
}

describe('the judge of a hostile session', () => {
  it('reports nothing when the session is as expected', async () => {
    expect(await judge({})).toEqual([]);
    expect(await judge({ artifacts: { bytes: 1, omitted: null } }, 'harmless')).toEqual([]);
  });

  it.each([
    ['another outcome', { outcome: 'infra_error' }, 'outcome infra_error instead of completed'],
    ['a reward that was not deserved', { reward: 1 }, 'reward 1 instead of 0'],
    ['no reward', { reward: null }, 'reward null instead of 0'],
    ['another attempt', { attempt: 2 }, '2 attempts'],
    ['another failure', { reward_details: {} }, 'failure undefined instead of patch_failed'],
    ['a call that should have been refused', { completion_count: 2 }, '2 recorded model calls instead of 1'],
    [
      'a probe that did not run to its end',
      { agent: { ...held.agent, stdout_tail: '' } },
      'did not print "probe ended"',
    ],
    [
      'a probe that succeeded',
      { agent: { ...held.agent, stdout_tail: 'broke: read a file\nprobe ended' } },
      'broke: read a file',
    ],
    [
      'tokens that the agent excluded',
      { audit: { tokens: { sampled: 5, trained: 0, excluded: { auxiliary: 5 }, constrained: 0 } } },
      '5 sampled tokens are excluded as auxiliary',
    ],
    ['a secret in the result', { error: { message: target.secrets[0] } }, 'the result contains the secret'],
  ])('reports %s', async (_, changes, text) => {
    expect((await judge(changes)).join('\n')).toContain(text);
  });

  it('reports a secret and the trace of a started program in the artifacts', async () => {
    const artifacts = { bytes: 1, omitted: null };
    expect(await judge({ artifacts }, `found ${target.secrets[0]}`)).toHaveLength(1);
    expect(await judge({ artifacts }, 'planted-program-ran')).toEqual(['git started a program of the agent']);
  });

  it('reports a session that did not end', async () => {
    expect(await judgeAttack(attack, undefined, {} as Trainer, target, [])).toEqual(['the session did not end']);
    expect(judgeNeighbour(undefined, 1, [])).toEqual(['an honest session did not end']);
  });

  it('reports an honest session with another reward, attempt or number of tokens', () => {
    expect(judgeNeighbour(held, 0, [])).toEqual([]);
    expect(judgeNeighbour(held, 1, []).join()).toContain('reward 0 instead of 1');
    expect(judgeNeighbour({ ...held, attempt: 3 }, 0, []).join()).toContain('3 attempts');
    const ledger = [{ session_id: 'ses_1', response_ids: [1, 2], request_id: 'r' }] as never;
    expect(judgeNeighbour(held, 0, ledger).join()).toContain('2 tokens were sampled, 0 recorded and 0 trained');
  });
});

it('there are attacks of every class, each with a name of its own', () => {
  const attacks = attacksOn(target);
  expect(attacks.length).toBeGreaterThanOrEqual(60);
  expect(new Set(attacks.map(({ name }) => name)).size).toBe(attacks.length);
  expect(new Set(attacks.map(({ kind }) => kind))).toEqual(new Set(['graders', 'sandbox', 'bombs', 'proxy', 'reward']));
});
