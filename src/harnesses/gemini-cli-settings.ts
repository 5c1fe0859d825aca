import type { McpServer } from '../schema/index.ts';
import type { CheckedContext } from './define.ts';
import type { GeminiCliSettings } from './gemini-cli.ts';
import { windowOf } from './window.ts';

/** What Gemini CLI takes the window of every model for that it does not know. */
const ASSUMED_WINDOW_TOKENS = 1_048_576;

/** Of a tool's output; the default, which is a tenth of a small window. */
const OUTPUT_CHARS = 40_000;
const CHARS_PER_TOKEN = 3;

const HELPERS = ['chat-compression-default', 'agent-history-provider-summarizer', 'context-calibrator'];

export function geminiCliSettings({ agent, contextWindow, settings }: CheckedContext<GeminiCliSettings>): unknown {
  const { contextTokens, replyTokens } = windowOf(contextWindow, settings.max_tokens);
  const name = agent.model_name;
  const policy = { model: name };
  return {
    general: {
      enableAutoUpdate: false,
      enableAutoUpdateNotification: false,
      checkpointing: { enabled: false },
      sessionRetention: { enabled: false },
    },
    privacy: { usageStatisticsEnabled: false },
    telemetry: { enabled: false },
    security: { auth: { selectedType: 'gemini-api-key', enforcedType: 'gemini-api-key' } },
    model: {
      compressionThreshold: compactAt(contextTokens, replyTokens) / ASSUMED_WINDOW_TOKENS,
      disableLoopDetection: true,
      skipNextSpeakerCheck: true,
    },
    modelConfigs: {
      customOverrides: [
        ...['base', ...HELPERS].map((model) => ({ match: { model }, modelConfig: policy })),
        { match: { model: name }, modelConfig: { ...policy, generateContentConfig: { maxOutputTokens: replyTokens } } },
      ],
    },
    tools: {
      sandbox: false,
      disableLLMCorrection: true,
      truncateToolOutputThreshold: Math.min(OUTPUT_CHARS, replyTokens * CHARS_PER_TOKEN),
    },
    mcpServers: Object.fromEntries(agent.mcp_servers.map((server) => [server.name, mcpServer(server)])),
  };
}

function compactAt(contextTokens: number, replyTokens: number): number {
  return Math.max(Math.floor(contextTokens / 2), contextTokens - 2 * replyTokens);
}

function mcpServer(server: McpServer): unknown {
  if (server.transport === 'stdio') {
    return { command: server.command, args: server.args, env: server.env, trust: true };
  }
  const { headers, url } = server;
  return { [server.transport === 'http' ? 'httpUrl' : 'url']: url, headers, trust: true };
}
