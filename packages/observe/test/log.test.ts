import { randomUUID } from 'node:crypto';
import { PassThrough } from 'node:stream';
import { FloeError } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { createLogger } from '../src/log.ts';

/**
 * A random value that occurs nowhere else in a log line. A fixed word could also be part of a path in an error's stack, such as the name of
 * the checkout's folder.
 */
const SECRET = randomUUID();

function logged(write: (log: ReturnType<typeof createLogger>) => void): Record<string, unknown> {
  const lines = new PassThrough();
  write(createLogger('test', 'info', lines));
  return JSON.parse(String(lines.read()));
}

describe('createLogger', () => {
  it('redacts secrets in fields, lists, errors and fields of child loggers', () => {
    const line = logged((log) =>
      log.child({ token: SECRET, node_id: 'n' }).info(
        {
          session_id: 's',
          key: SECRET,
          spec: { engine: { api_key: SECRET, url: 'u' } },
          list: [{ password: SECRET }, { name: 'x' }],
          err: new FloeError('internal', 'broken', { secret: SECRET, status: 500 }),
        },
        'message',
      ),
    );
    expect(JSON.stringify(line)).not.toContain(SECRET);
    expect(line).toMatchObject({
      node_id: 'n',
      session_id: 's',
      key: '[redacted]',
      spec: { engine: { api_key: '[redacted]', url: 'u' } },
      list: [{ password: '[redacted]' }, { name: 'x' }],
      err: { message: 'broken', details: { secret: '[redacted]', status: 500 } },
      msg: 'message',
    });
  });

  it('does not change the object that the caller logs', () => {
    const fields = { inner: { token: SECRET } };
    logged((log) => log.info(fields, 'message'));
    expect(fields).toEqual({ inner: { token: SECRET } });
  });
});
