import type { Clock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import { passThroughTracer, type SpanAttributes, type Tracer } from '../core/tracing.ts';
import type { Logger } from './log.ts';
import { recordingTracer } from './recording-tracer.ts';
import { SpanExporter } from './span-exporter.ts';

export type Tracing = {
  readonly tracer: Tracer;
  /** Sends what has ended. */
  close(): Promise<void>;
};

type Environment = Readonly<Record<string, string | undefined>>;

const NO_TRACING: Tracing = { tracer: passThroughTracer, close: async () => {} };

/**
 * Traces as OpenTelemetry's environment variables ask for: with `OTEL_EXPORTER_OTLP_ENDPOINT`, or the same for traces alone, spans
 * go to that collector; without, nothing is recorded, and traces are only handed on. `service` is the name of this process unless
 * `OTEL_SERVICE_NAME` gives another. Throws `setup_failed` for an address or a header that cannot be used.
 */
export function tracingFromEnvironment(
  environment: Environment,
  service: string,
  attributes: SpanAttributes,
  { clock, log }: { readonly clock: Clock; readonly log: Logger },
): Tracing {
  const url = addressIn(environment);
  if (url === null) return NO_TRACING;
  const resource = { 'service.name': environment.OTEL_SERVICE_NAME || service, ...attributes };
  const exporter = new SpanExporter({ url, headers: headersIn(environment), resource, clock, log });
  return {
    tracer: recordingTracer(clock, (span) => exporter.add(span)),
    close: () => exporter.close(),
  };
}

function addressIn(environment: Environment): string | null {
  for (const [name, path] of [
    ['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT', ''],
    ['OTEL_EXPORTER_OTLP_ENDPOINT', '/v1/traces'],
  ] as const) {
    const text = environment[name];
    if (text === undefined || text === '') continue;
    const url = URL.canParse(text) ? new URL(text) : null;
    if (url?.protocol !== 'http:' && url?.protocol !== 'https:') {
      throw new FloeError('setup_failed', `${name}: ${text} is not an http address`);
    }
    return text.replace(/\/+$/, '') + path;
  }
  return null;
}

/** `name=value` with commas between, values percent-encoded. */
function headersIn(environment: Environment): Record<string, string> {
  const name = 'OTEL_EXPORTER_OTLP_HEADERS';
  const entries = (environment[name] ?? '').split(',').filter((entry) => entry.trim() !== '');
  return Object.fromEntries(
    entries.map((entry) => {
      const at = entry.indexOf('=');
      const key = entry.slice(0, at).trim().toLowerCase();
      // The values may be secrets, so they are not shown.
      if (at < 1 || !/^[!#$%&'*+.^_`|~0-9a-z-]+$/.test(key)) {
        throw new FloeError('setup_failed', `${name}: every entry must be name=value`);
      }
      return [key, valueIn(name, entry.slice(at + 1).trim())];
    }),
  );
}

function valueIn(name: string, text: string): string {
  try {
    return decodeURIComponent(text);
  } catch (cause) {
    throw new FloeError('setup_failed', `${name}: a value is not percent-encoded`, {}, cause);
  }
}
