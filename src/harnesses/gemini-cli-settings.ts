import { z } from 'zod';
import type { McpServer } from '../schema/index.ts';
import { literal, twiceLiteral } from './config-text.ts';
import type { CheckedContext } from './define.ts';
import { windowOf } from './launch.ts';

export const geminiCliSettingsSchema = z.strictObject({
  /** Bound that is sent with each request of an agent; default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
});
export type GeminiCliSettings = z.output<typeof geminiCliSettingsSchema>;

/** Gemini CLI takes this for the window of every model that it does not know, and shares of it for its limits. */
const ASSUMED_WINDOW_TOKENS = 1_048_576;

/** Gemini CLI's own bound on a tool's output. */
const OUTPUT_CHARS = 40_000;
/** Of dense text, such as code and logs: a tool's output may then take what a reply may. */
const CHARS_PER_TOKEN = 3;

/** What its calls of a model go by: all but these, which stand alone, build on \`base\`. */
const MODEL_CONFIGS = [
  'base',
  'agent-history-provider-summarizer',
  'chat-compression-2.5-flash',
  'chat-compression-2.5-flash-lite',
  'chat-compression-2.5-pro',
  'chat-compression-3-flash',
  'chat-compression-3-pro',
  'chat-compression-3.1-flash-lite',
  'chat-compression-default',
  'context-calibrator',
];

/** Of one call of a model, 5 to 10 s apart; the proxy has asked the engine again itself. Its own ten take minutes. */
const ATTEMPTS = 3;

/** Tools that Google's servers would have to run. */
const HOSTED_TOOLS = ['google_web_search', 'web_fetch'];

/** The content of \`~/.gemini/settings.json\`. */
export function geminiCliSettings({ agent, contextWindow, settings }: CheckedContext<GeminiCliSettings>): object {
  const { contextTokens, replyTokens } = windowOf(contextWindow, settings.max_tokens);
  const { mcp_servers: servers, model_name: name, system_prompt: prompt } = agent;
  return {
    general: {
      enableAutoUpdate: false,
      enableAutoUpdateNotification: false,
      sessionRetention: { enabled: false },
      maxAttempts: ATTEMPTS,
    },
    privacy: { usageStatisticsEnabled: false },
    telemetry: { enabled: false },
    security: { auth: { selectedType: 'gemini-api-key' } },
    model: {
      compressionThreshold: compactAt(contextTokens, replyTokens) / ASSUMED_WINDOW_TOKENS,
      // It takes further calls of a model, whose answer may end the agent.
      disableLoopDetection: true,
      skipNextSpeakerCheck: true,
    },
    modelConfigs: {
      customOverrides: [
        ...MODEL_CONFIGS.map((model) => ({ match: { model }, modelConfig: { model: literal(name) } })),
        { match: { model: literal(name) }, modelConfig: { generateContentConfig: { maxOutputTokens: replyTokens } } },
      ],
    },
    tools: {
      sandbox: false,
      disableLLMCorrection: true,
      exclude: HOSTED_TOOLS,
      truncateToolOutputThreshold: Math.min(OUTPUT_CHARS, replyTokens * CHARS_PER_TOKEN),
    },
    // In the other format, whatever follows an @ in the system prompt is replaced, if only by an error.
    ...(prompt?.includes('@') ? { context: { importFormat: 'flat' } } : {}),
    mcpServers: Object.fromEntries(servers.map((server) => [server.name, literalServer(server)])),
  };
}

/** Tokens of a prompt at which to compact: half of the window, as the program does, or later where replies are short. */
function compactAt(contextTokens: number, replyTokens: number): number {
  // Room for the reply to that prompt, for what a tool says to it, and for the next reply: each may take as much.
  return Math.max(Math.floor(contextTokens / 2), contextTokens - 3 * replyTokens);
}

/** The values of its environment and of its headers are looked at a second time when it is started. */
function literalServer(server: McpServer): object {
  const said = mcpServer(server);
  return server.transport === 'stdio'
    ? { ...literal(said), env: twiceLiteral(server.env) }
    : { ...literal(said), headers: twiceLiteral(server.headers) };
}

/** In the form that Gemini CLI and Qwen Code have in common. */
export function mcpServer(server: McpServer): object {
  const trust = true;
  if (server.transport === 'stdio') {
    return { command: server.command, args: server.args, env: server.env, trust };
  }
  const { headers, url } = server;
  return { [server.transport === 'http' ? 'httpUrl' : 'url']: url, headers, trust };
}
