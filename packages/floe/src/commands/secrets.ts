import { existsSync, readFileSync } from 'node:fs';
import { asFloeError, FloeError, parseAs } from '@floe-rl/core';
import { roleSchema } from '@floe-rl/core/schema';
import type { RolloutConfigInput } from '@floe-rl/server';
import type { Command } from 'commander';
import { ensureToken, floeHome, readCallbackSecrets, readToken, wordsOf } from './home.ts';

/**
 * Secrets are read from files, the environment or the floe home, which is the directory of floe's persistent data (`$FLOE_HOME`). They are
 * never command-line arguments, because every user of the machine can read the arguments of a process. No error message contains a secret.
 */

export type TokenOptions = { tokenFile?: string };

export const TOKEN_FILE = '--token-file <file>';
export const TOKEN_HELP = 'file with the control token (default: $FLOE_TOKEN, else the token in the floe home)';

/** Returns the bearer token for a client or node; `null` when none is configured. */
export function findToken({ tokenFile }: TokenOptions): string | null {
  if (tokenFile !== undefined) return readSecret('--token-file', tokenFile);
  return environmentVariable('FLOE_TOKEN') ?? readToken(floeHome());
}

/**
 * Returns the bearer token of a server: the configured one, else the token in the floe home (`$FLOE_HOME`). A missing token in the floe
 * home is created. Throws `setup_failed` when the file of `--token-file` does not exist.
 */
function serverToken(options: TokenOptions): string {
  const { tokenFile } = options;
  if (tokenFile !== undefined && !existsSync(tokenFile)) {
    const command = `(umask 077; openssl rand -hex 32 > ${tokenFile})`;
    throw new FloeError('setup_failed', `--token-file: ${tokenFile} does not exist; create it with: ${command}`);
  }
  return findToken(options) ?? ensureToken(floeHome());
}

export type ServerSecretOptions = TokenOptions & { tokensFile?: string; callbackSecretFile?: string };

export function withSecretOptions(command: Command): Command {
  return command
    .option(TOKEN_FILE, `${TOKEN_HELP}, which is created on first use`)
    .option('--tokens-file <file>', 'file with further tokens, one `role token` per line: see docs/security.md')
    .option(
      '--callback-secret-file <file>',
      'file with the secrets that sign callbacks, one per line (default: $FLOE_CALLBACK_SECRET, else callback-secret in the floe home)',
    );
}

/**
 * Returns the tokens and callback secrets of a server, without tokens when `auth` is false. Throws `setup_failed` for a file that cannot be
 * read, and `bad_request` for an invalid line.
 */
export function serverSecrets(
  options: ServerSecretOptions & { auth?: boolean },
): Pick<RolloutConfigInput, 'token' | 'tokens' | 'callback_secrets'> {
  const tokens =
    options.auth === false ? {} : { token: serverToken(options), tokens: readRoleTokens(options.tokensFile) };
  return { ...tokens, callback_secrets: callbackSecrets(options) };
}

/** Returns the API key for floe's calls of an engine; `undefined` when none is configured. */
export function engineKey(file: string | undefined): string | undefined {
  if (file !== undefined) return readSecret('--api-key-file', file);
  return environmentVariable('FLOE_ENGINE_API_KEY');
}

function callbackSecrets({ callbackSecretFile }: ServerSecretOptions): string[] {
  if (callbackSecretFile !== undefined) return wordsOf(readText('--callback-secret-file', callbackSecretFile));
  const text = environmentVariable('FLOE_CALLBACK_SECRET');
  return text === undefined ? readCallbackSecrets(floeHome()) : wordsOf(text);
}

function readRoleTokens(file: string | undefined): { token: string; role: 'admin' | 'trainer' | 'node' | 'viewer' }[] {
  if (file === undefined) return [];
  const lines = readText('--tokens-file', file).split('\n');
  return lines.flatMap((line, index) => {
    const parts = wordsOf(line);
    if (parts.length === 0 || line.trimStart().startsWith('#')) return [];
    const where = `--tokens-file: ${file}, line ${index + 1}`;
    const [role, token] = parts;
    if (token === undefined || parts.length > 2)
      throw new FloeError('bad_request', `${where}: expected \`role token\``);
    return [{ token, role: parseAs(roleSchema, role, where) }];
  });
}

function readSecret(option: string, file: string): string {
  const secrets = wordsOf(readText(option, file));
  const [secret] = secrets;
  if (secret !== undefined && secrets.length === 1) return secret;
  throw new FloeError('bad_request', `${option}: ${file} must contain one word, but contains ${secrets.length}`);
}

function readText(option: string, file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    throw new FloeError('setup_failed', `${option}: ${file} cannot be read: ${asFloeError(cause).message}`, {}, cause);
  }
}

/**
 * Returns the value of an environment variable; `undefined` when it is unset or empty, because scripts often unset a variable by making it
 * empty.
 */
function environmentVariable(name: string): string | undefined {
  return process.env[name]?.trim() || undefined;
}
