import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { clientTls, withConnectionOptions } from '../../src/commands/connection.ts';
import { registerEngines } from '../../src/commands/engines.ts';
import { registerGateway } from '../../src/commands/gateway.ts';
import { engineKey, findToken, serverSecrets } from '../../src/commands/secrets.ts';
import { registerServer } from '../../src/commands/server.ts';
import { listenersOf } from '../../src/commands/server-options.ts';
import { registerUp } from '../../src/commands/up.ts';

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
  throw new Error('no error was thrown');
}

describe('the token', () => {
  it('is read from a file, else the environment, else the floe home', () => {
    expect(findToken({})).toBeNull();
    file('control-token', 'home-token\n');
    expect(findToken({})).toBe('home-token');
    vi.stubEnv('FLOE_TOKEN', 'environment-token');
    expect(findToken({})).toBe('environment-token');
    expect(findToken({ tokenFile: file('given', ' file-token \n') })).toBe('file-token');
  });

  it('is created for a server on first use, readable only by its owner', () => {
    const { token } = serverSecrets({});
    expect(String(token).length).toBeGreaterThan(30);
    expect(serverSecrets({}).token).toBe(token);
    expect(statSync(join(home, 'control-token')).mode & 0o777).toBe(0o600);
  });

  it('is reported as missing with the command that creates it, when the token file of the server does not exist', () => {
    const path = join(home, 'absent');
    const { code, message } = errorOf(() => serverSecrets({ tokenFile: path }));
    expect(code).toBe('setup_failed');
    expect(message).toContain(`create it with: (umask 077; openssl rand -hex 32 > ${path})`);
  });

  it('is absent from the settings of a server without authentication', () => {
    expect(serverSecrets({ auth: false })).toEqual({ callback_secrets: [] });
  });

  it('does not occur in the error for an invalid token file', () => {
    const missing = errorOf(() => findToken({ tokenFile: join(home, 'nowhere') }));
    expect(missing).toMatchObject({ code: 'setup_failed', message: expect.stringContaining('--token-file') });
    const two = errorOf(() => findToken({ tokenFile: file('two', 'hidden-a hidden-b') }));
    expect(two.message).toContain('one word');
    expect(two.message).not.toContain('hidden');
  });
});

describe('--tokens-file', () => {
  it('reads a role and a token from each line', () => {
    const tokensFile = file('tokens', '# roles\ntrainer abc\n\n  viewer   def\n');
    expect(serverSecrets({ tokensFile }).tokens).toEqual([
      { role: 'trainer', token: 'abc' },
      { role: 'viewer', token: 'def' },
    ]);
  });

  it.each(['trainer', 'trainer hidden-a hidden-b', 'hidden-a hidden-b'])('refuses the line `%s`', (text) => {
    const error = errorOf(() => serverSecrets({ tokensFile: file('tokens', `viewer ok\n${text}\n`) }));
    expect(error.message).toContain('line 2');
    expect(error.message).not.toContain('hidden');
  });
});

it('a server reads one or more callback secrets from a file, else the environment, else the floe home', () => {
  expect(serverSecrets({ auth: false }).callback_secrets).toEqual([]);
  file('callback-secret', 'whsec_home\n');
  expect(serverSecrets({ auth: false }).callback_secrets).toEqual(['whsec_home']);
  vi.stubEnv('FLOE_CALLBACK_SECRET', 'whsec_a whsec_b');
  expect(serverSecrets({ auth: false }).callback_secrets).toEqual(['whsec_a', 'whsec_b']);
  const callbackSecretFile = file('given', 'whsec_new\nwhsec_old\n');
  expect(serverSecrets({ auth: false, callbackSecretFile }).callback_secrets).toEqual(['whsec_new', 'whsec_old']);
});

it('a command reads the key of an engine from a file or the environment', () => {
  expect(engineKey(undefined)).toBeUndefined();
  vi.stubEnv('FLOE_ENGINE_API_KEY', 'environment-token');
  expect(engineKey(undefined)).toBe('environment-token');
  expect(engineKey(file('key', 'file-token\n'))).toBe('file-token');
});

it('no command accepts a secret as an argument', () => {
  const program = new Command();
  for (const register of [registerServer, registerUp, registerGateway, registerEngines]) register(program);
  withConnectionOptions(program.command('any'));
  const all = (command: Command): Command[] => [command, ...command.commands.flatMap(all)];
  const options = all(program).flatMap((command) => command.options);
  expect(options.length).toBeGreaterThan(50);
  const secrets = options.filter((option) =>
    /token(?!s-per|izer|-ids)|secret|password|api-key/.test(option.long ?? ''),
  );
  expect(new Set(secrets.map((option) => option.long))).toEqual(
    new Set(['--token-file', '--tokens-file', '--callback-secret-file', '--api-key-file']),
  );
});

describe('TLS and listeners', () => {
  it('are configured by the options of the server', () => {
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
  ])('refuses %o', (options, option) => {
    expect(errorOf(() => listenersOf(options))).toMatchObject({
      code: 'bad_request',
      message: expect.stringContaining(option),
    });
  });

  it('configures the certificate authorities and the certificate of a client', () => {
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
