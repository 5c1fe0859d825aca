import { copyFileSync, cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { repositoryRoot } from '../../../../../tools/repository.ts';

const SIM_TOKENIZER = join(repositoryRoot(), 'packages', 'sim', 'assets', 'tokenizer.json');
const SIM_TEMPLATE = join(
  repositoryRoot(),
  'packages',
  'capture',
  'test',
  'engines',
  'tokenizer',
  'sim-template.jinja',
);

/** A folder with the files that models are published with: the tokenizer and the chat template, here of the simulated model. */
export type TokenizerFolder = {
  readonly path: string;
  write(name: string, content: string | object): void;
  remove(): void;
};

export function simTokenizerFolder(): TokenizerFolder {
  const path = mkdtempSync(join(tmpdir(), 'floe-tokenizer-'));
  copyFileSync(SIM_TOKENIZER, join(path, 'tokenizer.json'));
  cpSync(SIM_TEMPLATE, join(path, 'chat_template.jinja'));
  const write = (name: string, content: string | object): void =>
    writeFileSync(join(path, name), typeof content === 'string' ? content : JSON.stringify(content));
  write('tokenizer_config.json', { eos_token: '<|im_end|>', model_max_length: 4096 });
  return { path, write, remove: () => rmSync(path, { recursive: true }) };
}
