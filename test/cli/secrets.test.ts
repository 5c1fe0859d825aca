import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { clientTls, withConnectionOptions } from '../../src/cli/connection.ts';
import { registerEngines } from '../../src/cli/engines.ts';
import { registerGateway } from '../../src/cli/gateway.ts';
import { engineKey, findToken, serverSecrets } from '../../src/cli/secrets.ts';
import { registerServer } from '../../src/cli/server.ts';
import { listenersOf } from '../../src/cli/server-options.ts';
import { registerUp } from '../../src/cli/up.ts';

let home: string;
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), 'floe-secrets-'));
  vi.stubEnv('FLOE_HOME', home);
  for (const name of ['FLOE_TOKEN', 'FLOE_CALLBACK_SECRET', 'FLOE_ENGINE_API_KEY', 'FLOE_CA']) vi.stubEnv(name, '');
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(home, { recursive: true, force: true });
});

function file(name: string, text: string): string {
  const path = join(home, name);
  writeFileSync(path, text);
  return path;
}

function errorOf(work: () => unknown): { code: string; message: string } {
  try {
    work();
  } catch (thrown) {
    return thrown as { code: string; message: string };
  }
  throw new Error('it was not refused');
}

describe('where tokens come from', () => {
  it('is a file, then the environment, then the floe home', () => {
    expect(findToken({})).toBeNull();
    file('control-token', 'of-the-home\n');
    expect(findToken({})).toBe('of-the-home');
    vi.stubEnv('FLOE_TOKEN', 'of-the-environment');
    expect(findToken({})).toBe('of-the-environment');
    expect(findToken({ tokenFile: file('given', ' of-a-file \n') })).toBe('of-a-file');
  });

  it('is made for a server on first use, for its owner alone', () => {
    const { token } = serverSecrets({});
    expect(String(token).length).toBeGreaterThan(30);
    expect(serverSecrets({}).token).toBe(token);
    expect(statSync(join(home, 'control-token')).mode & 0o777).toBe(0o600);
  });

  it('is told how to be made when a server is given a file that is not there', () => {
    const path = join(home, 'absent');
    const { code, message } = errorOf(() => serverSecrets({ tokenFile: path }));
    expect(code).toBe('setup_failed');
    expect(message).toContain(`make one: (umask 077; openssl rand -hex 32 > ${path})`);
  });

  it('is nowhere when the server wants none', () => {
    expect(serverSecrets({ auth: false })).toEqual({ callback_secrets: [] });
  });

  it('is named without its content when it is wrong', () => {
    const missing = errorOf(() => findToken({ tokenFile: join(home, 'nowhere') }));
    expect(missing).toMatchObject({ code: 'setup_failed', message: expect.stringContaining('--token-file') });
    const two = errorOf(() => findToken({ tokenFile: file('two', 'hidden-a hidden-b') }));
    expect(two.message).toContain('one word');
    expect(two.message).not.toContain('hidden');
  });
});

describe('tokens with roles', () => {
  it('are one for each line', () => {
    const tokensFile = file('tokens', '# who\ntrainer abc\n\n  viewer   def\n');
    expect(serverSecrets({ tokensFile }).tokens).toEqual([
      { role: 'trainer', token: 'abc' },
      { role: 'viewer', token: 'def' },
    ]);
  });

  it.each(['trainer', 'trainer hidden-a hidden-b', 'hidden-a hidden-b'])('the line `%s` is refused', (text) => {
    const error = errorOf(() => serverSecrets({ tokensFile: file('tokens', `viewer ok\n${text}\n`) }));
    expect(error.message).toContain('line 2');
    expect(error.message).not.toContain('hidden');
  });
});

it('signing secrets come from a file, the environment or the floe home, several for a rotation', () => {
  expect(serverSecrets({ auth: false }).callback_secrets).toEqual([]);
  file('callback-secret', 'whsec_home\n');
  expect(serverSecrets({ auth: false }).callback_secrets).toEqual(['whsec_home']);
  vi.stubEnv('FLOE_CALLBACK_SECRET', 'whsec_a whsec_b');
  expect(serverSecrets({ auth: false }).callback_secrets).toEqual(['whsec_a', 'whsec_b']);
  const callbackSecretFile = file('given', 'whsec_new\nwhsec_old\n');
  expect(serverSecrets({ auth: false, callbackSecretFile }).callback_secrets).toEqual(['whsec_new', 'whsec_old']);
});

it('the key of an engine comes from a file or the environment', () => {
  expect(engineKey(undefined)).toBeUndefined();
  vi.stubEnv('FLOE_ENGINE_API_KEY', 'of-the-environment');
  expect(engineKey(undefined)).toBe('of-the-environment');
  expect(engineKey(file('key', 'of-a-file\n'))).toBe('of-a-file');
});

it('no command takes a secret as an argument', () => {
  const program = new Command();
  for (const register of [registerServer, registerUp, registerGateway, registerEngines]) register(program);
  withConnectionOptions(program.command('any'));
  const all = (command: Command): Command[] => [command, ...command.commands.flatMap(all)];
  const options = all(program).flatMap((command) => command.options);
  expect(options.length).toBeGreaterThan(50);
  const secrets = options.filter((option) => /token(?!s-per)|secret|password|api-key/.test(option.long ?? ''));
  expect(new Set(secrets.map((option) => option.long))).toEqual(
    new Set(['--token-file', '--tokens-file', '--callback-secret-file', '--api-key-file']),
  );
});

describe('certificates and listeners', () => {
  it('are taken from the options', () => {
    expect(listenersOf({})).toEqual({ tls: null, node_listener: null, admin_listener: null });
    const options = { tlsCert: 'c', tlsKey: 'k', tlsClientCa: 'a', nodeListen: '0.0.0.0:8081', adminListen: '[::1]:9' };
    expect(listenersOf(options)).toEqual({
      tls: { cert: 'c', key: 'k', client_ca: 'a' },
      node_listener: { host: '0.0.0.0', port: 8081 },
      admin_listener: { host: '::1', port: 9 },
    });
  });

  it.each([
    [{ tlsCert: 'c' }, '--tls-key'],
    [{ tlsClientCa: 'a' }, '--tls-client-ca'],
    [{ nodeListen: '8081' }, '--node-listen'],
    [{ adminListen: 'host:99999' }, '--admin-listen'],
  ])('%o is refused', (options, named) => {
    expect(errorOf(() => listenersOf(options))).toMatchObject({
      code: 'bad_request',
      message: expect.stringContaining(named),
    });
  });

  it('a client trusts what it is told to', () => {
    expect(clientTls({})).toBeUndefined();
    vi.stubEnv('FLOE_CA', '/env/ca.pem');
    expect(clientTls({})).toMatchObject({ ca: '/env/ca.pem' });
    expect(clientTls({ ca: '/given.pem', clientCert: 'c', clientKey: 'k' })).toEqual({
      ca: '/given.pem',
      cert: 'c',
      key: 'k',
    });
    expect(errorOf(() => clientTls({ clientCert: 'c' })).message).toContain('--client-key');
  });
});
