import { describe, expect, it } from 'vitest';
import { isAccepted, parseCondition } from '../../src/generation/acceptance-conditions.ts';
import { resultOf } from './results.ts';

const accepts = (texts: string[], fields = {}): boolean => isAccepted(resultOf(fields), texts.map(parseCondition));

describe('conditions for acceptance', () => {
  it.each([
    ['reward>=1', { reward: 1 }, true],
    ['reward>=1', { reward: 0.5 }, false],
    ['reward > 0.2', { reward: 0.5 }, true],
    ['reward<=0', { reward: 0 }, true],
    ['reward<0', { reward: 0 }, false],
    ['reward=0.5', { reward: 0.5 }, true],
    ['reward!=0.5', { reward: 0.5 }, false],
    ['reward!=0.5', { reward: null }, false],
    ['reward<=5', { reward: null }, false],
    ['components.lint.style>0', { reward_components: { 'lint.style': 1 } }, true],
    ['components.lint>0', { reward_components: { lint: null } }, false],
    ['components.constructor!=7', {}, false],
    ['trainable_tokens<=2', { trainable_tokens: 2 }, true],
    ['completion_count<2', { completion_count: 2 }, false],
    ['outcome=completed, truncated_turns', { outcome: 'truncated_turns' }, true],
    ['outcome=completed', { outcome: 'truncated_turns' }, false],
    ['outcome!=truncated_turns', { outcome: 'truncated_turns' }, false],
  ])('%s of %j is %s', (condition, fields, expected) => {
    expect(accepts([condition], fields)).toBe(expected);
  });

  it('must all hold', () => {
    expect(accepts(['reward>=1', 'completion_count<=1'])).toBe(true);
    expect(accepts(['reward>=1', 'completion_count<1'])).toBe(false);
  });

  it('never hold for a sample that cannot be trained on', () => {
    expect(accepts([], { unusable: 'agent_timeout' })).toBe(false);
    expect(accepts([], { unusable: null })).toBe(true);
  });

  it.each([
    'reward',
    'reward>',
    'reward>=high',
    'Reward>=1',
    'components.>1',
    'outcome>completed',
    'outcome=good',
    'constructor=1',
    'status=COMPLETED',
    '',
  ])('refuses %j', (text) => {
    expect(() => parseCondition(text)).toThrow(expect.objectContaining({ code: 'bad_request' }));
  });
});
