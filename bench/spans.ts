// Measures the cost of recording a span with floe's tracer. It also measures OpenTelemetry's SDK when its packages are installed.
//
//   npm run bench -- spans [--quick] [--json]
//   npm install --no-save @opentelemetry/api @opentelemetry/resources @opentelemetry/sdk-trace-base @opentelemetry/exporter-trace-otlp-http
//
// Both tracers record the same session attempts (a span with four children, eight attributes each) and send them to a collector in another
// process. The first result is the CPU time (user and system) that this process uses until all spans are sent. It is the median of rounds
// that alternate between the tracers, after a warm-up. The second result is the time in which a new process imports each tracer, after it
// has imported modules that a gateway always imports.
import { execFileSync, fork } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { systemClock } from '@floe-rl/core';
import { silentLogger } from '@floe-rl/observe';
import { SpanExporter } from '#observe/span-exporter';
import { recordingTracer } from '#observe/tracing';
import { median } from './report.ts';

const isQuick = process.argv.includes('--quick');
const ATTEMPTS = isQuick ? 200 : 1_000;
const CHILDREN = 4;
const SPANS = ATTEMPTS * (1 + CHILDREN);
const WARM_UP_ROUNDS = isQuick ? 3 : 10;
const ROUNDS = isQuick ? 7 : 41;
const IMPORTS = isQuick ? 5 : 15;

const ATTRIBUTES = {
  session_id: 'ses_01jd0000000000000000000000',
  task_id: 'task_1',
  attempt: 1,
  epoch: 3,
  node_id: 'node-1',
  harness: 'pi',
  share: 0.5,
  sampled: true,
};

/** A tracer to be measured: it records `ATTEMPTS` session attempts and sends their spans to `url`. Resolves when all spans are sent. */
type Subject = (url: string) => Promise<void>;

const floe: Subject = async (url) => {
  const resource = { 'service.name': 'floe' };
  const exporter = new SpanExporter({ url, headers: {}, resource, clock: systemClock, log: silentLogger });
  const tracer = recordingTracer(systemClock, (span) => exporter.add(span));
  for (let i = 0; i < ATTEMPTS; i++) {
    const attempt = tracer.start('session_attempt', { parent: null, id: `ses_${i}` }, ATTRIBUTES);
    for (let n = 0; n < CHILDREN; n++) {
      const call = attempt.child('model_call', ATTRIBUTES, 'client');
      call.set({ outcome: 'ok', tokens: n });
      if (call.traceparent?.length !== 55) throw new Error('the span has no traceparent');
      call.end(n === 0 ? 'failed' : null);
    }
    attempt.end();
  }
  await exporter.close();
  if (exporter.droppedCount > 0) throw new Error(`${exporter.droppedCount} spans were dropped`);
};

const SDK_PACKAGES = ['api', 'resources', 'sdk-trace-base', 'exporter-trace-otlp-http'].map(
  (name) => `@opentelemetry/${name}`,
);

type SdkSpan = {
  spanContext(): { readonly traceId: string; readonly spanId: string };
  setAttributes(attributes: object): void;
  setStatus(status: { readonly code: number; readonly message: string }): void;
  end(): void;
};

/**
 * The parts of the OpenTelemetry SDK that the bench calls. They are declared here because floe does not depend on the SDK, so its types are
 * missing.
 */
type Sdk = {
  readonly trace: { setSpan(context: unknown, span: SdkSpan): unknown };
  readonly ROOT_CONTEXT: unknown;
  readonly resourceFromAttributes: (attributes: object) => unknown;
  readonly BasicTracerProvider: new (
    options: object,
  ) => {
    getTracer(name: string): { startSpan(name: string, options: object, context: unknown): SdkSpan };
    shutdown(): Promise<void>;
  };
  readonly BatchSpanProcessor: new (exporter: unknown, options: object) => unknown;
  readonly OTLPTraceExporter: new (options: object) => unknown;
};

/** Loads the OpenTelemetry SDK; returns `null` when its packages are not installed. */
async function loadSdk(): Promise<Sdk | null> {
  try {
    const modules: object[] = [];
    for (const name of SDK_PACKAGES) modules.push((await import(name)) as object);
    return Object.assign({}, ...modules) as Sdk;
  } catch {
    return null;
  }
}

/** Limits of the exporter of the OpenTelemetry SDK. They are set to the limits of floe's own exporter. */
const SDK_LIMITS = {
  maxQueueSize: 8_192,
  maxExportBatchSize: 512,
  scheduledDelayMillis: 2_000,
  exportTimeoutMillis: 5_000,
};
const SDK_KIND_CLIENT = 2;
const SDK_STATUS_ERROR = 2;

const withSdk =
  (sdk: Sdk): Subject =>
  async (url) => {
    const exporter = new sdk.OTLPTraceExporter({ url, timeoutMillis: SDK_LIMITS.exportTimeoutMillis });
    const provider = new sdk.BasicTracerProvider({
      resource: sdk.resourceFromAttributes({ 'service.name': 'floe' }),
      spanProcessors: [new sdk.BatchSpanProcessor(exporter, SDK_LIMITS)],
    });
    const tracer = provider.getTracer('floe');
    for (let i = 0; i < ATTEMPTS; i++) {
      const attempt = tracer.startSpan('session_attempt', { attributes: ATTRIBUTES }, sdk.ROOT_CONTEXT);
      const parent = sdk.trace.setSpan(sdk.ROOT_CONTEXT, attempt);
      for (let n = 0; n < CHILDREN; n++) {
        const call = tracer.startSpan('model_call', { attributes: ATTRIBUTES, kind: SDK_KIND_CLIENT }, parent);
        call.setAttributes({ outcome: 'ok', tokens: n });
        const { traceId, spanId } = call.spanContext();
        if (`00-${traceId}-${spanId}-01`.length !== 55) throw new Error('the span has no traceparent');
        if (n === 0) call.setStatus({ code: SDK_STATUS_ERROR, message: 'failed' });
        call.end();
      }
      attempt.end();
    }
    await provider.shutdown();
  };

async function cpuMicrosPerSpan(subject: Subject, url: string): Promise<number> {
  const before = process.cpuUsage();
  await subject(url);
  const { user, system } = process.cpuUsage(before);
  return (user + system) / SPANS;
}

/** Returns the median time in milliseconds that a new process takes to import `modules` after it has imported `base`. */
function importMs(modules: readonly string[], base: readonly string[]): number {
  const load = (names: readonly string[]): string => names.map((name) => `await import('${name}');`).join('');
  const program = `${load(base)}const start = performance.now();${load(modules)}console.log(performance.now() - start)`;
  const run = (): string =>
    execFileSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8' });
  return median(Array.from({ length: IMPORTS }, () => Number(run()))) ?? Number.NaN;
}

/** Runs this process as the collector of spans: sends its port to the parent process, and answers every request with an empty object. */
function serveCollector(): void {
  const server = createServer(async (request, response) => {
    for await (const _ of request);
    response.writeHead(200, { 'content-type': 'application/json' }).end('{}');
  });
  server.listen(0, '127.0.0.1', () => process.send?.((server.address() as AddressInfo).port));
}

async function measureCpu(subjects: Readonly<Record<string, Subject>>): Promise<Record<string, number>> {
  const collector = fork(fileURLToPath(import.meta.url), ['--collector']);
  try {
    const [port] = (await once(collector, 'message')) as [number];
    const url = `http://127.0.0.1:${port}/v1/traces`;
    const figures = new Map(Object.keys(subjects).map((name): [string, number[]] => [name, []]));
    for (let round = -WARM_UP_ROUNDS; round < ROUNDS; round++) {
      for (const [name, subject] of Object.entries(subjects)) {
        const micros = await cpuMicrosPerSpan(subject, url);
        if (round >= 0) figures.get(name)?.push(micros);
      }
    }
    return Object.fromEntries([...figures].map(([name, values]) => [name, median(values) ?? Number.NaN]));
  } finally {
    collector.kill();
  }
}

async function main(): Promise<void> {
  const sdk = await loadSdk();
  const cpu = await measureCpu(sdk === null ? { floe } : { floe, sdk: withSdk(sdk) });
  const own = (path: string): string => new URL(path, import.meta.url).href;
  const base = [own('../src/core/clock.js'), own('../src/observe/log.js'), import.meta.resolve('undici')];
  const start = {
    floe: importMs([own('../src/observe/tracing.js')], base),
    ...(sdk === null
      ? {}
      : {
          sdk: importMs(
            SDK_PACKAGES.map((name) => import.meta.resolve(name)),
            base,
          ),
        }),
  };
  if (cpu.sdk !== undefined && cpu.floe !== undefined)
    console.log(`CPU per span, OpenTelemetry's SDK over floe: ${(cpu.sdk / cpu.floe).toFixed(2)}`);
  for (const [name, micros] of Object.entries(cpu)) console.log(`CPU per span, ${name}: ${micros.toFixed(1)} µs`);
  for (const [name, ms] of Object.entries(start)) console.log(`time to import, ${name}: ${ms.toFixed(1)} ms`);
  if (sdk === null) console.log("OpenTelemetry's SDK is not installed, so floe's tracer was measured alone");
  if (process.argv.includes('--json')) console.log(JSON.stringify({ cpu_us_per_span: cpu, import_ms: start }));
}

if (process.argv.includes('--collector')) serveCollector();
else await main();
