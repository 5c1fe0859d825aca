/**
 * `floe/plugins`: what authors of agents, environments, tools, builders, evaluators, harnesses and runtimes need. floe's own are written with
 * the same types and functions.
 */
export { mainConversation } from '../agent/conversation.ts';
export {
  type AgentDefinition,
  defineAgent,
  type Episode,
  type EpisodeLimits,
  type EpisodeResult,
  type ReplyReward,
} from '../agent/episode.ts';
export {
  defineHandler,
  type HandlerDefinition,
  type HandlerEvaluation,
  type HandlerJob,
  type HandlerResult,
  type HandlerStage,
} from '../agent/handler.ts';
export { type HttpModel, type HttpModelOptions, httpModel } from '../agent/http-model.ts';
export { type LoopOptions, pushInstruction, runLoop } from '../agent/loop.ts';
export type { Model, ModelRequest } from '../agent/model.ts';
export { type PlayOptions, playEnvironment } from '../agent/play.ts';
export { AgentRunner, type ChatCompletion, GEMRunner, type JobResult, ToolCallRunner } from '../agent/runner.ts';
export type { BatchFilter, FilteredGroup } from '../core/batch-filter.ts';
export type { FloeError } from '../core/errors.ts';
export type { SandboxFile } from '../core/sandbox.ts';
export {
  defineEnvironment,
  type Environment,
  type EnvironmentDefinition,
  type Observation,
  type PerfectPlay,
  type StepResult,
} from '../envs/environment.ts';
export type { EvaluatorKit, EvaluatorModule } from '../evaluators/custom.ts';
export type {
  EvaluatedSession,
  Evaluation,
  EvaluationContext,
  Evaluator,
  TraceView,
} from '../evaluators/evaluator.ts';
export type { PostRunChange, PostRunEvent, PostRunModule } from '../evaluators/post-run-hook.ts';
export { defineHarness, type HarnessDefinition } from '../harnesses/define.ts';
export type {
  AgentFeature,
  HarnessAdapter,
  HarnessInstall,
  HarnessReport,
  HarnessVerdict,
  Launch,
  LaunchContext,
} from '../harnesses/harness.ts';
export type {
  ExecRequest,
  ExecResult,
  KillReason,
  Runtime,
  RuntimeDescription,
  RuntimePaths,
  RuntimeProblem,
  RuntimeProvider,
  StartRequest,
} from '../runtimes/runtime.ts';
export type { RuntimeTools, ToolProcess } from '../runtimes/tools.ts';
export type {
  Builder,
  BuildResult,
  BuiltTrace,
  Credit,
  StepPosition,
  TrainedSpan,
} from '../tokens/builders/builder.ts';
export type { BuilderKit, BuilderModule } from '../tokens/builders/custom.ts';
export type { Completion } from '../tokens/completion.ts';
export type { GraphNode, TokenGraph } from '../tokens/graph.ts';
export type { AskOptions, Conversation, ForkOptions, Turn } from '../tools/conversation.ts';
export {
  type AnyTool,
  type Box,
  defineTool,
  type Tool,
  type ToolContexts,
  ToolError,
  type ToolResult,
} from '../tools/tool.ts';
export {
  defineToolset,
  type OpenToolset,
  openToolset,
  type ToolsetContext,
  type ToolsetDefinition,
} from '../tools/toolset.ts';
