import { gatewayConfigSchema } from '@floe-rl/node';
import type { PlacedImageSettings } from '@floe-rl/sandbox';
import { rolloutConfigSchema } from '@floe-rl/server';
import type { Command } from 'commander';
import { z } from 'zod';
import { keyList } from '../deployment/key-list.ts';
import { imageDir } from './home.ts';
import { readYamlFile } from './yaml-file.ts';

/**
 * Schema of the section `server` of the config file. It omits secrets and the settings that have a command-line option, so that each
 * setting has one source.
 */
const serverSettingsSchema = rolloutConfigSchema.omit({
  host: true,
  port: true,
  token: true,
  tokens: true,
  tls: true,
  node_listener: true,
  admin_listener: true,
  callback_secrets: true,
  callback_hosts: true,
  polar: true,
});

const nodeSettingsSchema = gatewayConfigSchema.pick({
  lease_wait_seconds: true,
  heartbeat_seconds: true,
  stall_seconds: true,
  undelivered_mb: true,
  journal: true,
  math_python: true,
  images: true,
  egress_hosts: true,
  prepared: true,
  prewarmed: true,
  background_stops: true,
  reused_runtimes: true,
  evaluators: true,
  plugins: true,
  post_run_hooks: true,
});

/** Schema of the config file that `--config` names. Servers and nodes can share one file, because each reads only its own section. */
export const configFileSchema = z.strictObject({
  server: serverSettingsSchema.prefault({}).describe('for `floe server` and `floe up`'),
  node: nodeSettingsSchema.prefault({}).describe('for `floe gateway` and `floe up`'),
});
export type Settings = z.infer<typeof configFileSchema>;

export type ConfigFileOptions = { config?: string };

export function withConfigOption(command: Command): Command {
  return command.option('--config <file>', 'file with the settings that have no option: see docs/configuration.md');
}

/** Reads the config file that `--config` names. Without a file, all settings have their defaults. Throws the errors of `readYamlFile`. */
export async function readSettings({ config }: ConfigFileOptions): Promise<Settings> {
  return config === undefined ? configFileSchema.parse({}) : readYamlFile(config, configFileSchema);
}

/** Reads the settings of the image store from the config file. Throws the errors of `readYamlFile`. */
export async function readImageSettings(options: ConfigFileOptions): Promise<PlacedImageSettings> {
  const { images } = (await readSettings(options)).node;
  return { ...images, dir: images.dir ?? imageDir() };
}

/** Renders docs/configuration.md, which describes every key of the config file with the text in its schema. */
export function configurationPage(): string {
  return [
    '# Configuration',
    '',
    'Generated from the schemas by `npm run generate`. `floe server`, `floe gateway` and `floe up` take most of what they need as options',
    '(`--help` lists them). What is seldom changed is in a file in YAML or JSON, `--config floe.yaml`:',
    '',
    '```yaml',
    'server:',
    '  queue_order: longest_first',
    '  retain_tasks_hours: 72',
    '  trainer_weights: { main: 3 }',
    'node:',
    '  stall_seconds: 1800',
    '```',
    '',
    'One file may serve servers and nodes: each reads its part. Other keys are refused, with their path. Addresses, secrets and TLS are',
    'options, so that a file can be shown to everybody; `GET /rollout/status` shows the values in force (`limits`). `*` stands for any name.',
    'Keys that may be null are null by default, unless another default is given.',
    '',
    ...keyList(configFileSchema),
    '',
  ].join('\n');
}
