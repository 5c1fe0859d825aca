import type { ConstraintKind } from '@floe-rl/core/schema';
import { expect } from 'vitest';
import type { ChatRequest, ConversationTurn, ParsedReply } from '../dialect-clients.ts';
import { assistant, type GoldenSession, results, user } from '../session.ts';
import { ask, type GoldenCase, type Scene } from './scene.ts';

const SCHEMA = { type: 'object', properties: { answer: { type: 'integer' } }, required: ['answer'] };

/** A request whose reply is constrained, with the constraint that floe should record for it. */
type Demand = { readonly over: Partial<Omit<ChatRequest, 'stream'>>; readonly constraint: ConstraintKind };

const FORM: Demand = { over: { schema: SCHEMA }, constraint: 'response_format' };
const ANY_CALL: Demand = { over: { forcedCall: 'any' }, constraint: 'tool_choice' };
const NAMED_CALL: Demand = { over: { forcedCall: 'bash' }, constraint: 'tool_choice' };

/** The golden test cases with a forced tool call or a required response format. */
export const CONSTRAINTS: readonly GoldenCase[] = [
  {
    letter: 'y',
    title: 'a reply in a required format is marked, and trained only when the task requests it',
    run: (scene) => runsUnder(scene, FORM, user('FORMS. Fill in the form.')),
  },
  {
    letter: 'y',
    title: 'a forced call is marked, and trained only when the task requests it',
    async run(scene) {
      // The oldest SGLang servers cannot force a tool call when the prompt is given as token ids.
      if (scene.mode.name === 'sglang generate') return;
      await runsUnder(scene, ANY_CALL, user('FORMS. Act.'));
      await runsUnder(scene, NAMED_CALL, user('FORMS. Act.'));
    },
  },
];

/**
 * Runs a session with one constrained and one unconstrained reply. Checks the constraint that is recorded for each, and which tokens are
 * trained.
 */
async function runsUnder({ open }: Scene, { over, constraint }: Demand, start: ConversationTurn): Promise<void> {
  const session = await open();
  const first = await session.say(ask([start], over));
  const next = first.calls.length > 0 ? [results(first), user('Thanks.')] : [user('Thanks.')];
  await session.say(ask([start, assistant(first), ...next]));
  expectSatisfied(first, constraint);
  const [bound, free] = session.session.completions();
  expect(bound?.request.constraint).toBe(constraint);
  expect(free?.request.constraint).toBeNull();
  const toolChoice = over.forcedCall === undefined ? null : expect.anything();
  expect([bound?.request.toolChoice, free?.request.toolChoice]).toEqual([toolChoice, null]);
  expectMasked(session);
  const [boundTokens, freeTokens] = [bound?.responseIds.length ?? 0, free?.responseIds.length ?? 0];
  const masked = await session.judge();
  expect(masked.audit.tokens).toMatchObject({
    trained: freeTokens,
    excluded: { constrained: boundTokens },
    constrained: 0,
  });
  const trained = await session.judge({ constrained: 'train' });
  expect(trained.audit.tokens).toEqual({
    sampled: boundTokens + freeTokens,
    trained: boundTokens + freeTokens,
    excluded: {},
    constrained: boundTokens,
  });
}

function expectSatisfied(reply: ParsedReply, constraint: ConstraintKind): void {
  if (constraint === 'tool_choice') expect(reply.calls).toHaveLength(1);
  else expect(JSON.parse(reply.text)).toEqual({ answer: 7 });
}

/**
 * Checks that the constraint changed a log-probability of the first reply. Otherwise the case would not show that constrained tokens must
 * be marked.
 */
function expectMasked(session: GoldenSession): void {
  const [entry] = session.ledger();
  expect(entry?.processed_logprobs).not.toEqual(entry?.raw_logprobs);
}
