import { type Program, runNamed } from '../tools/programs.ts';

/** All benches, by the name with which `npm run bench -- NAME` starts them. */
const PROGRAMS: Readonly<Record<string, Program>> = {
  builder: {
    summary: "CPU time of a session's trajectory: graph, builder, audit, JSON",
    load: () => import('./builder.ts'),
  },
  dialects: {
    summary: 'CPU time of a request made canonical, compared with JSON.parse',
    load: () => import('./dialects/main.ts'),
  },
  export: {
    summary: "CPU time of exports in each trainer's format, as JSON lines and as Arrow",
    load: () => import('./export.ts'),
  },
  pool: {
    summary: 'throughput of each way to choose an engine, simulated',
    load: () => import('./pool.ts'),
  },
  proxy: {
    summary: 'latency and CPU time that the proxy adds to a model call',
    load: () => import('./proxy/main.ts'),
  },
  readers: {
    summary: 'time per character of what reads the output of agents, with hostile outputs',
    load: () => import('./readers.ts'),
  },
  scale: {
    summary: 'rates, memory and scheduling of a server and its nodes',
    load: () => import('./scale/main.ts'),
  },
  schedule: {
    summary: 'replays the durations of finished sessions under each dispatch policy',
    load: () => import('./schedule/main.ts'),
  },
  sessions: {
    summary: 'sessions per second, memory per session, and what floe adds to a run of pi',
    load: () => import('./sessions/main.ts'),
  },
  tools: {
    summary: 'latency of shells and IPython, compared with tmux and Jupyter',
    load: () => import('./tools/main.ts'),
  },
  spans: { summary: 'CPU time and start-up time of a recorded span', load: () => import('./spans.ts') },
};

await runNamed('bench', PROGRAMS);
