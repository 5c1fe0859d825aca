import { existsSync, readFileSync } from 'node:fs';
import type { Command } from 'commander';
import { asFloeError, FloeError } from '../core/errors.ts';
import { parseAs } from '../core/parse.ts';
import { type RolloutConfigInput, roleSchema } from '../rollout/config.ts';
import { ensureToken, floeHome, readCallbackSecrets, readToken } from './home.ts';

/*
 * Secrets come from files, the environment or the floe home, never from arguments: those can be read by everyone on the
 * machine. Nothing here repeats what it read in an error.
 */

export type TokenOptions = { tokenFile?: string };

export const TOKEN_FILE = '--token-file <file>';
export const TOKEN_HELP = 'a file with the control token (default: $FLOE_TOKEN, else the one in the floe home)';

/** The token of a client or node; null: there is none. */
export function findToken({ tokenFile }: TokenOptions): string | null {
  if (tokenFile !== undefined) return oneSecret('--token-file', tokenFile);
  return fromEnvironment('FLOE_TOKEN') ?? readToken(floeHome());
}

/** The token of a server; that of the floe home is made on first use. Throws `setup_failed` for a file that is not there. */
export function serverToken(options: TokenOptions): string {
  const { tokenFile } = options;
  if (tokenFile !== undefined && !existsSync(tokenFile)) {
    const command = `(umask 077; openssl rand -hex 32 > ${tokenFile})`;
    throw new FloeError('setup_failed', `--token-file: ${tokenFile} is not there; make one: ${command}`);
  }
  return findToken(options) ?? ensureToken(floeHome());
}

export type ServerSecretOptions = TokenOptions & { tokensFile?: string; callbackSecretFile?: string };

export function withSecretOptions(command: Command): Command {
  return command
    .option(TOKEN_FILE, `${TOKEN_HELP}; the one in the floe home is made on first use`)
    .option('--tokens-file <file>', 'further tokens, one `role token` per line: docs/security.md')
    .option(
      '--callback-secret-file <file>',
      'signs callbacks, one secret per line (default: $FLOE_CALLBACK_SECRET, else callback-secret in the floe home)',
    );
}

/** Throws `setup_failed` for a file that cannot be read, and `bad_request` for a line that is wrong. */
export function serverSecrets(
  options: ServerSecretOptions & { auth?: boolean },
): Pick<RolloutConfigInput, 'token' | 'tokens' | 'callback_secrets'> {
  const tokens = options.auth === false ? {} : { token: serverToken(options), tokens: rolesOf(options.tokensFile) };
  return { ...tokens, callback_secrets: callbackSecrets(options) };
}

/** An API key for an engine; undefined: none was given. */
export function engineKey(file: string | undefined): string | undefined {
  if (file !== undefined) return oneSecret('--api-key-file', file);
  return fromEnvironment('FLOE_ENGINE_API_KEY');
}

function callbackSecrets({ callbackSecretFile }: ServerSecretOptions): string[] {
  if (callbackSecretFile !== undefined) return words(readText('--callback-secret-file', callbackSecretFile));
  const given = fromEnvironment('FLOE_CALLBACK_SECRET');
  return given === undefined ? readCallbackSecrets(floeHome()) : words(given);
}

function rolesOf(file: string | undefined): { token: string; role: 'admin' | 'trainer' | 'node' | 'viewer' }[] {
  if (file === undefined) return [];
  const lines = readText('--tokens-file', file).split('\n');
  return lines.flatMap((line, index) => {
    const parts = words(line);
    if (parts.length === 0 || line.trimStart().startsWith('#')) return [];
    const where = `--tokens-file: ${file}, line ${index + 1}`;
    const [role, token] = parts;
    if (token === undefined || parts.length > 2) throw new FloeError('bad_request', `${where}: is not \`role token\``);
    return [{ token, role: parseAs(roleSchema, role, where) }];
  });
}

function oneSecret(option: string, file: string): string {
  const found = words(readText(option, file));
  const [secret] = found;
  if (secret !== undefined && found.length === 1) return secret;
  throw new FloeError('bad_request', `${option}: ${file} must hold one word, and has ${found.length}`);
}

function readText(option: string, file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    throw new FloeError('setup_failed', `${option}: ${file} cannot be read: ${asFloeError(cause).message}`, {}, cause);
  }
}

/** An empty variable is none: scripts unset one so. */
function fromEnvironment(name: string): string | undefined {
  return process.env[name]?.trim() || undefined;
}

function words(text: string): string[] {
  return text.split(/\s+/).filter((word) => word !== '');
}
