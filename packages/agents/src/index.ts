/** The exports of `@floe-rl/agents` for other packages. */
export { builtInAgents } from './agents/registry.ts';
export { type CheckOptions, checkEnvironment, type EnvironmentCheck } from './environments/check.ts';
export {
  defineEnvironment,
  type Environment,
  type EnvironmentDefinition,
  type EnvironmentServices,
  type Observation,
  type PerfectPlay,
  type StepResult,
} from './environments/environment.ts';
export {
  type GroupFile,
  groupFileSchema,
  SPLITS,
  type Split,
  streamOfSplit,
} from './environments/groups/group-file.ts';
export { isRollFile, readRollFile } from './environments/groups/roll-file.ts';
export { ENVIRONMENTS, findEnvironment, parseEnvironmentConfig } from './environments/registry.ts';
export { REMOTE_ENVIRONMENTS } from './environments/remote/registry.ts';
export { AgentHost, pythonFor } from './host/agent-host.ts';
export { agentEnv, type EpisodeBackend } from './host/agent-process.ts';
export { builtInCatalog, type Catalog, loadCatalog, type ModuleKind, type PluginModules } from './host/catalog.ts';
export type { EpisodeEnd, EpisodeOrder } from './host/protocol.ts';
export { pythonEnvironment } from './host/python/python-environment.ts';
export { checkPythonPlugins, PythonHost } from './host/python/python-host.ts';
export { pythonPluginSchema } from './host/python/python-plugin.ts';
export { runEpisode } from './host/run-episode.ts';
export { checkPluginUse } from './host/task-check.ts';
export { ToolsetPool } from './host/toolset-pool.ts';
export { mainConversation } from './loop/conversation.ts';
export {
  type AgentDefinition,
  defineAgent,
  type Episode,
  type EpisodeLimits,
  type EpisodeResult,
  type ModelEndpoint,
  type ReplyReward,
} from './loop/episode.ts';
export {
  defineHandler,
  type HandlerDefinition,
  type HandlerEvaluation,
  type HandlerJob,
  type HandlerResult,
  type HandlerStage,
} from './loop/handler.ts';
export { hintSettingsSchema } from './loop/hints.ts';
export { type HttpModel, type HttpModelOptions, httpModel } from './loop/http-model.ts';
export { type LoopOptions, pushInstruction, runLoop } from './loop/loop.ts';
export { mailboxModel } from './loop/mailbox-model.ts';
export type { Model, ModelRequest } from './loop/model.ts';
export { type PlayOptions, playEnvironment } from './loop/play.ts';
export { AgentRunner, type ChatCompletion, GEMRunner, type JobResult, ToolCallRunner } from './loop/runner.ts';
export type { AskOptions, Conversation, ForkOptions, Turn } from './tools/conversation.ts';
export { builtInToolsets } from './tools/registry.ts';
export {
  type AnyTool,
  type Box,
  defineTool,
  type Tool,
  type ToolContexts,
  ToolError,
  type ToolResult,
} from './tools/tool.ts';
export {
  defineToolset,
  type OpenToolset,
  openToolset,
  type ToolsetContext,
  type ToolsetDefinition,
} from './tools/toolset.ts';
