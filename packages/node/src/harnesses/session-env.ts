import type { Lease } from '@floe-rl/core/schema';

type SessionEnvContext = {
  readonly lease: Lease;
  /** Base URL of the model API for this session, without a trailing slash: `http://host:port/s/<session key>`. */
  readonly baseUrl: string;
  readonly apiKey: string;
  readonly paths: {
    readonly workdir: string;
    readonly home: string;
    readonly artifacts: string;
    readonly logs: string;
  };
};

/**
 * Returns the environment variables that every agent gets: variables with floe's names, and variables with the names that harnesses and
 * existing task scripts read. The API key is valid only at the proxy of this session.
 */
export function sessionEnv({ lease, baseUrl, apiKey, paths }: SessionEnvContext): Record<string, string> {
  const openaiUrl = `${baseUrl}/v1`;
  return {
    FLOE_SESSION_ID: lease.session_id,
    FLOE_TASK_ID: lease.task_id,
    FLOE_SAMPLE_INDEX: String(lease.sample_index),
    FLOE_ATTEMPT: String(lease.attempt),
    FLOE_BASE_URL: baseUrl,
    FLOE_API_KEY: apiKey,
    FLOE_MODEL: lease.task.agent.model_name,
    FLOE_WORKDIR: paths.workdir,
    FLOE_ARTIFACTS_DIR: paths.artifacts,
    FLOE_LOGS_DIR: paths.logs,
    SESSION_ID: lease.session_id,
    TASK_ID: lease.task_id,
    SESSION_DIR: paths.workdir,
    ARTIFACTS_DIR: paths.artifacts,
    LOGS_DIR: paths.logs,
    AGENT_LOG_DIR: paths.logs,
    ANTHROPIC_BASE_URL: baseUrl,
    ANTHROPIC_API_BASE: baseUrl,
    ANTHROPIC_API_KEY: apiKey,
    OPENAI_BASE_URL: openaiUrl,
    OPENAI_API_BASE: openaiUrl,
    OPENAI_API_KEY: apiKey,
    GOOGLE_API_URL: baseUrl,
    GOOGLE_API_KEY: apiKey,
    GOOGLE_GEMINI_BASE_URL: baseUrl,
    // LiteLLM appends `/models/…` to this URL, so it needs the version of the API.
    GEMINI_API_BASE: `${baseUrl}/v1beta`,
    GEMINI_API_KEY: apiKey,
  };
}
