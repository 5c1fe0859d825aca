import { readFileSync } from 'node:fs';
import { asFloeError, FloeError } from '@floe-rl/core';
import type { RolloutConfigInput } from '@floe-rl/server';
import { type Command, Option } from 'commander';
import type { Storage } from '../up/storage.ts';
import { tlsFilePair } from './connection.ts';

export type StorageOptions = { database?: string; databaseFile?: string; blobs?: string };

/** Adds the options that choose where a server stores its database and blobs. */
export function withStorageOptions(command: Command): Command {
  return command
    .option(
      '--database <url>',
      'PostgreSQL URL without a password (default: $FLOE_DATABASE_URL, else an embedded database)',
    )
    .option('--database-file <file>', 'file with the PostgreSQL URL, which may contain the password')
    .option(
      '--blobs <location>',
      'directory or s3://bucket/prefix?endpoint=… for blobs (default: $FLOE_BLOBS, else the data directory)',
    );
}

/**
 * Returns the storage that the options name, else the storage that the environment variables name. Throws `bad_request` when an argument
 * contains a password, because every user of the machine can read the arguments of a process.
 */
export function storageOf(options: StorageOptions): Storage {
  if (options.database !== undefined && options.databaseFile !== undefined) {
    throw new FloeError('bad_request', '--database and --database-file exclude each other: give one of them');
  }
  if (options.database !== undefined && hasPassword(options.database)) {
    throw new FloeError(
      'bad_request',
      '--database: every user of this machine can read a password in the arguments; use --database-file, $FLOE_DATABASE_URL or $PGPASSWORD',
    );
  }
  const file = options.databaseFile === undefined ? undefined : readUrl(options.databaseFile);
  return {
    database: options.database ?? file ?? nullIfEmpty(process.env.FLOE_DATABASE_URL),
    blobs: options.blobs ?? nullIfEmpty(process.env.FLOE_BLOBS),
  };
}

/** The values of the option `--polar`. */
const POLAR_PLACES = ['prefix', 'root'] as const;

export type PolarOption = { polar?: (typeof POLAR_PLACES)[number] };

/** Adds the option that serves the API of NVIDIA's Polar. */
export function withPolarOption(command: Command): Command {
  const description =
    "serve the API of NVIDIA's Polar, whose GET calls need no token: prefix: below /polar; root: at the root as well, and floe's own API below /floe";
  return command.addOption(new Option('--polar [where]', description).choices(POLAR_PLACES).preset('root'));
}

/** Returns the setting for the address of the Polar API. */
export function polarOf({ polar }: PolarOption): Pick<RolloutConfigInput, 'polar'> {
  return { polar: polar ?? 'off' };
}

function hasPassword(url: string): boolean {
  if (!URL.canParse(url)) return false;
  const { password, searchParams } = new URL(url);
  return password !== '' || searchParams.has('password');
}

function readUrl(path: string): string {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch (cause) {
    throw new FloeError(
      'bad_request',
      `--database-file: ${path} cannot be read: ${asFloeError(cause).message}`,
      { path },
      cause,
    );
  }
}

function nullIfEmpty(text: string | undefined): string | null {
  return text === undefined || text === '' ? null : text;
}

export type ListenerOptions = {
  tlsCert?: string;
  tlsKey?: string;
  tlsClientCa?: string;
  nodeListen?: string;
  adminListen?: string;
};

/** Adds the options of a server for TLS and for additional listeners. */
export function withListenerOptions(command: Command): Command {
  return command
    .option('--tls-cert <file>', 'certificate chain in PEM format; reloaded when the file changes')
    .option('--tls-key <file>', 'private key of the certificate')
    .option('--tls-client-ca <file>', 'require nodes to present a certificate signed by one of these authorities')
    .option('--node-listen <host:port>', 'separate listener for nodes, so that a firewall can restrict it')
    .option('--admin-listen <host:port>', 'separate listener for metrics');
}

/**
 * Returns the TLS files and the additional listeners that the options describe. Throws `bad_request` with the name of an invalid option.
 */
export function listenersOf(
  options: ListenerOptions,
): Pick<RolloutConfigInput, 'tls' | 'node_listener' | 'admin_listener'> {
  const files = tlsFilePair('--tls-cert', options.tlsCert, '--tls-key', options.tlsKey);
  if (files === null && options.tlsClientCa !== undefined) {
    throw new FloeError('bad_request', '--tls-client-ca requires --tls-cert and --tls-key');
  }
  return {
    tls: files === null ? null : { ...files, client_ca: options.tlsClientCa ?? null },
    node_listener: parseAddress('--node-listen', options.nodeListen),
    admin_listener: parseAddress('--admin-listen', options.adminListen),
  };
}

function parseAddress(option: string, text: string | undefined): { host: string; port: number } | null {
  if (text === undefined) return null;
  const [, host, port] = /^(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})$/.exec(text)?.filter((part) => part !== undefined) ?? [];
  if (host === undefined || port === undefined || Number(port) > 65_535) {
    throw new FloeError('bad_request', `${option}: ${text} is not host:port`);
  }
  return { host, port: Number(port) };
}
