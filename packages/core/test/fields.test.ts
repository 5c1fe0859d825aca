import { describe, expect, it } from 'vitest';
import { fieldError, fieldErrors } from '../src/fields.ts';

describe('the error for a field', () => {
  it('has the path and the message, in its own message and as an issue', () => {
    const error = fieldError('agent.size', 'must be at most 4');
    expect(error).toMatchObject({
      code: 'schema_violation',
      message: 'agent.size: must be at most 4',
      details: { issues: [{ path: 'agent.size', message: 'must be at most 4' }] },
    });
  });

  it('names the input in the message alone', () => {
    const error = fieldError('after', 'is 7', { input: 'query' });
    expect(error.message).toBe('query: after: is 7');
    expect(error.details).toEqual({ issues: [{ path: 'after', message: 'is 7' }] });
  });

  it('takes another code, further details, a cause and a text of its own', () => {
    const cause = new Error('no such user');
    const options = { code: 'unsupported', details: { backend: 'none' }, cause, text: 'no user' } as const;
    const error = fieldError('runtime.user', 'is 5', options);
    expect(error).toMatchObject({ code: 'unsupported', message: 'no user', cause });
    expect(error.details).toEqual({ backend: 'none', issues: [{ path: 'runtime.user', message: 'is 5' }] });
  });

  it('has the first of several issues in its message, and the number of the others', () => {
    const issues = ['a', 'b', 'c'].map((path) => ({ path, message: 'is missing' }));
    const error = fieldErrors(issues, { input: 'body' });
    expect(error.message).toBe('body: a: is missing (and 2 more)');
    expect(error.details).toEqual({ issues });
  });
});
