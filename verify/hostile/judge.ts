// Decides whether floe withstood an attack, and whether an honest session that ran during the attacks has the right result.
import { promisify } from 'node:util';
import { gunzip } from 'node:zlib';
import { MIB } from '@floe-rl/core';
import type { SessionResult } from '@floe-rl/core/schema';
import { checkAgainstLedger, type LedgerEntry } from '@floe-rl/sim';
import type { Trainer } from '../faults/trainer.ts';
import type { Attack, Target } from './attack.ts';
import { PLANTED_PROGRAM_RAN } from './attacks/git.ts';
import { PROBE_BROKE } from './perl.ts';

/** Maximum size in bytes of the unpacked artifacts of a session. It exceeds the storage of a hostile session. */
const MAX_ARTIFACT_BYTES = 1024 * MIB;
/** Maximum number of characters of an error message or an output line that a finding quotes. */
const QUOTED_CHARS = 300;

/** Returns the unpacked archive of a session's artifacts; an empty buffer when the session has none. */
async function artifactsOf(trainer: Trainer, result: SessionResult): Promise<Buffer> {
  if ((result.artifacts?.bytes ?? 0) === 0) return Buffer.alloc(0);
  const archive = await trainer.client.artifacts(result.session_id);
  return promisify(gunzip)(archive, { maxOutputLength: MAX_ARTIFACT_BYTES });
}

/** Returns one sentence for each guarantee that an attack broke; an empty list when floe withstood the attack. */
export async function judgeAttack(
  attack: Attack,
  result: SessionResult | undefined,
  trainer: Trainer,
  target: Target,
  ledger: readonly LedgerEntry[],
): Promise<string[]> {
  if (result === undefined) return ['the session did not end'];
  const { holds } = attack;
  const seen: string[] = [];
  const { outcome, reward, attempt, error } = result;
  if (!holds.outcomes.includes(outcome)) {
    seen.push(
      `outcome ${outcome} instead of ${holds.outcomes.join(' or ')} (${error?.message.slice(0, QUOTED_CHARS)})`,
    );
  }
  if (reward !== holds.reward) seen.push(`reward ${reward} instead of ${holds.reward}`);
  if (attempt !== 1) seen.push(`${attempt} attempts`);
  const { failure } = result.reward_details;
  if (holds.failures !== undefined && !holds.failures.includes(String(failure))) {
    seen.push(`failure ${failure} instead of ${holds.failures.join(' or ')}`);
  }
  if (holds.completions !== undefined && result.completion_count !== holds.completions) {
    seen.push(`${result.completion_count} recorded model calls instead of ${holds.completions}`);
  }
  seen.push(...judgeOutput(attack, result));
  seen.push(...judgeTokens(result, ledger));
  const texts = [Buffer.from(JSON.stringify(result)), await artifactsOf(trainer, result)];
  for (const secret of target.secrets) {
    if (texts.some((text) => text.includes(secret))) seen.push(`the result contains ${secret.slice(0, -24)}…`);
  }
  if (texts.some((text) => text.includes(PLANTED_PROGRAM_RAN))) seen.push('git started a program of the agent');
  return seen;
}

function judgeOutput({ holds }: Attack, { agent }: SessionResult): string[] {
  const output = agent?.stdout_tail ?? '';
  const broke = output.split('\n').filter((line) => line.startsWith(PROBE_BROKE));
  const missing = (holds.says ?? []).filter((text) => !output.includes(text));
  return [
    ...broke.map((line) => line.slice(0, QUOTED_CHARS)),
    ...missing.map((text) => `the agent did not print "${text}": ${(agent?.stderr_tail ?? '').slice(-QUOTED_CHARS)}`),
  ];
}

/**
 * Checks the sampled tokens of an attack's session. An agent must not influence how the policy is sampled or which tokens are trained: All
 * sampled tokens are trained as the engine sampled them. Exceptions are calls whose client did not receive the reply, and calls in which the
 * agent requested a format.
 */
function judgeTokens(result: SessionResult, ledger: readonly LedgerEntry[]): string[] {
  const {
    abandoned: _abandoned,
    undelivered: _undelivered,
    constrained: _constrained,
    ...others
  } = result.audit?.tokens.excluded ?? {};
  const excluded = Object.entries(others).filter(([, tokens]) => tokens > 0);
  const own = ledger.filter((entry) => entry.session_id === result.session_id);
  const { mismatches } = checkAgainstLedger([result], own, 'processed', { unknownVersions: 'allow' });
  const ownSampling = own.filter(({ params }) => params.temperature !== 1 || params.topP !== 1 || params.topK !== 0);
  return [
    ...excluded.map(([reason, tokens]) => `${tokens} sampled tokens are excluded as ${reason}`),
    ...mismatches.slice(0, 1).map((mismatch) => `tokens: ${JSON.stringify(mismatch)}`),
    ...ownSampling.slice(0, 1).map(({ params }) => `sampled with ${JSON.stringify(params)}`),
  ];
}

/** Returns one sentence for each way in which the result of an honest session is wrong. */
export function judgeNeighbour(
  result: SessionResult | undefined,
  reward: number,
  ledger: readonly LedgerEntry[],
): string[] {
  if (result === undefined) return ['an honest session did not end'];
  const { session_id: id, outcome, attempt, audit } = result;
  const wrong: string[] = [];
  if (outcome !== 'completed') wrong.push(`outcome ${outcome} (${result.error?.message})`);
  if (result.reward !== reward)
    wrong.push(`reward ${result.reward} instead of ${reward} (${JSON.stringify(result.reward_details.failure)})`);
  if (attempt !== 1) wrong.push(`${attempt} attempts`);
  const own = ledger.filter((entry) => entry.session_id === id);
  const sampled = own.reduce((sum, entry) => sum + entry.response_ids.length, 0);
  const { sampled: counted, trained } = audit?.tokens ?? { sampled: null, trained: null };
  if (counted !== sampled || trained !== sampled) {
    wrong.push(`${sampled} tokens were sampled, ${counted} recorded and ${trained} trained`);
  }
  const { mismatches } = checkAgainstLedger([result], own, 'processed', { unknownVersions: 'allow' });
  if (mismatches.length > 0) wrong.push(`tokens: ${JSON.stringify(mismatches[0])}`);
  return wrong.map((text) => `honest session ${id}: ${text}`);
}
