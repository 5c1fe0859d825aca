import { groupFileSchema } from '@floe-rl/agents';
import { batchStreamRequestSchema, taskRequestSchema } from '@floe-rl/core/schema';
import { parseScenarios } from '@floe-rl/sim';
import { parse as parseToml } from 'smol-toml';
import { parseAllDocuments } from 'yaml';
import { z } from 'zod';
import { configFileSchema } from '#floe/commands/config-file';
import { clusterConfigSchema } from '#floe/deployment/cluster-config';
import { topologySchema } from '#floe/deployment/topology';
import type { Block } from '../pages/blocks.ts';
import type { Finding } from './finding.ts';

type Check = (value: Record<string, unknown>) => void;

/** Keys that only a result has. An object with one of them is not checked as part of a task. */
const KEYS_OF_RESULTS = ['outcome', 'reward', 'traces', 'call_kind', 'error'];

/**
 * The forms of data that the project reads, each with the keys of its top level. A block has the first form whose keys include all keys of the
 * block. Pages may show only a part of a task or of a batch stream.
 */
const FORMS: readonly { readonly name: string; readonly keys: readonly string[]; readonly check: Check }[] = [
  form('the config file', configFileSchema),
  form('a task', taskRequestSchema.partial()),
  form('a batch stream', batchStreamRequestSchema.partial()),
  { name: 'scenarios', keys: ['scenarios'], check: (value) => void parseScenarios(value, 'the block') },
  form('environment groups', groupFileSchema),
  { name: 'a cluster file', keys: keysOf(clusterConfigSchema), check: checkAs(clusterConfigSchema) },
  { name: 'a topology', keys: keysOf(topologySchema), check: checkAs(topologySchema) },
];

/** Checks blocks of YAML, JSON and TOML. Each must be well-formed. A block in one of the {@link FORMS} must also be valid. */
export function checkData(blocks: readonly Block[]): { readonly forms: number; readonly findings: readonly Finding[] } {
  let forms = 0;
  const findings = blocks.flatMap((block): Finding[] => {
    const where = `${block.page}:${block.line}`;
    try {
      for (const value of valuesOf(block)) {
        const found = formOf(value);
        if (found === null) continue;
        forms++;
        found.check(value as Record<string, unknown>);
      }
      return [];
    } catch (error) {
      return [{ where, problem: error instanceof z.ZodError ? z.prettifyError(error) : (error as Error).message }];
    }
  });
  return { forms, findings };
}

function valuesOf({ language, text }: Block): unknown[] {
  if (language === 'json') return [JSON.parse(text)];
  if (language === 'toml') return [parseToml(text)];
  return parseAllDocuments(text).map((document) => {
    const [error] = document.errors;
    if (error !== undefined) throw error;
    return document.toJS() as unknown;
  });
}

function formOf(value: unknown): (typeof FORMS)[number] | null {
  if (typeof value !== 'object' || value === null) return null;
  const keys = Object.keys(value);
  if (keys.some((key) => KEYS_OF_RESULTS.includes(key))) return null;
  return FORMS.find((one) => keys.every((key) => one.keys.includes(key))) ?? null;
}

function form(name: string, schema: z.ZodObject): (typeof FORMS)[number] {
  return { name, keys: keysOf(schema), check: checkAs(schema) };
}

function checkAs(schema: z.ZodType): Check {
  return (value) => void schema.parse(value);
}

function keysOf(schema: z.ZodType): string[] {
  const json = z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' });
  return Object.keys(json.properties ?? {});
}
