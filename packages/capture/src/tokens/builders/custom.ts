import { FloeError, fieldError, messageOf, parseAs } from '@floe-rl/core';
import { constrainedSpanSchema, versionSpanSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { GraphNode, TokenGraph } from '../graph.ts';
import { assembleTrace } from './assembly.ts';
import type { Builder, BuildResult } from './builder.ts';
import { ownedChains } from './chains.ts';
import { excludedCompletions } from './exclusion.ts';

/**
 * The argument of `createBuilder` in an operator's builder module: the functions that the built-in builders use, so that the module need
 * not import floe.
 */
export type BuilderKit = {
  readonly assembleTrace: typeof assembleTrace;
  readonly excludedCompletions: typeof excludedCompletions;
  readonly ownedChains: typeof ownedChains;
  /** Creates the error that a builder should throw for a wrong configuration field. */
  readonly refusal: (field: string, message: string) => FloeError;
};

/** The exports of a module that an operator registers as a builder; see docs/guides/write-a-builder.md. */
export type BuilderModule = {
  createBuilder(kit: BuilderKit): Pick<Builder, 'checkConfig' | 'build'>;
};

const count = z.int().min(0);

const spanSchema = z.object({
  completionId: z.string(),
  offset: count,
  start: count,
  length: z.int().min(1),
  exactContext: z.boolean(),
});

const expertsSchema = z.object({
  dtype: z.enum(['uint8', 'uint16', 'int32']),
  shape: z.tuple([count, count, count]),
  start: count,
  data: z.instanceof(Buffer),
});

function resultSchema(graph: TokenGraph) {
  const nodes = new Set(graph.nodes);
  const traceSchema = z.strictObject({
    ids: z.instanceof(Int32Array),
    promptLength: count,
    lossMask: z.instanceof(Uint8Array),
    logprobs: z.instanceof(Float32Array),
    spans: z.array(spanSchema),
    versionSpans: z.array(versionSpanSchema),
    constrainedSpans: z.array(constrainedSpanSchema),
    routedExperts: expertsSchema.nullable().default(null),
    nodes: z.array(z.custom<GraphNode>((node) => nodes.has(node as GraphNode), 'not a node of the graph')).min(1),
    step: z.object({ episode: count, turn: count, last: z.boolean() }).nullable().default(null),
  });
  return z.strictObject({
    traces: z.array(traceSchema),
    excluded: z.map(z.string(), z.string().min(1)).default(new Map()),
    credit: z.enum(['broadcast', 'divide']).default('broadcast'),
  });
}

const partsSchema = z.object({
  checkConfig: z.custom<Builder['checkConfig']>((value) => typeof value === 'function', 'must be a function'),
  build: z.custom<Builder['build']>((value) => typeof value === 'function', 'must be a function'),
});

/**
 * Wraps the builder of an operator's module under the name that the operator configured. `where` names the module in error messages. Throws
 * `setup_failed` for a module that does not export `createBuilder` or whose builder lacks a function. The returned builder throws
 * `builder_failed` when the module's builder throws any error but `schema_violation`, or returns a value that is not a build result.
 */
export function customBuilder(name: string, where: string, module: Readonly<Record<string, unknown>>): Builder {
  const parts = partsOf(where, module.createBuilder);
  const guarded = <T>(work: () => T): T => {
    try {
      return work();
    } catch (error) {
      if (FloeError.is(error) && error.code === 'schema_violation') throw error;
      throw failed(name, error);
    }
  };
  return {
    name,
    checkConfig: (config) => guarded(() => parts.checkConfig(config)),
    build: (graph, config) =>
      checked(
        name,
        graph,
        guarded(() => parts.build(graph, config)),
      ),
  };
}

const KIT: BuilderKit = {
  assembleTrace,
  excludedCompletions,
  ownedChains,
  refusal: (field, message) => fieldError(`builder.config.${field}`, message),
};

function partsOf(where: string, createBuilder: unknown): z.infer<typeof partsSchema> {
  if (typeof createBuilder !== 'function') {
    throw new FloeError('setup_failed', `${where} does not export a function createBuilder`);
  }
  try {
    return parseAs(partsSchema, createBuilder(KIT), 'what createBuilder returned');
  } catch (error) {
    const message = messageOf(error);
    throw new FloeError('setup_failed', `${where}: ${message}`, {}, error);
  }
}

function checked(name: string, graph: TokenGraph, result: unknown): BuildResult {
  try {
    return parseAs(resultSchema(graph), result, `the result of builder ${name}`);
  } catch (error) {
    throw failed(name, error);
  }
}

function failed(name: string, error: unknown): FloeError {
  const message = messageOf(error);
  return new FloeError('builder_failed', `builder ${name}: ${message}`, { builder: name }, error);
}
