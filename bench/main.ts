import { type Program, runNamed } from '../tools/programs.ts';

/** All benches. `npm run bench -- NAME` starts the bench with this name. */
const PROGRAMS: Readonly<Record<string, Program>> = {
  builder: {
    summary: "CPU time of a session's trajectory: graph, builder, audit, JSON",
    load: () => import('./builder.ts'),
  },
  compare: {
    summary: 'two commits: ratios of the figures of quick benches, run in turns',
    load: () => import('./compare/main.ts'),
  },
  dialects: {
    summary: 'CPU time of a request made canonical, compared with JSON.parse',
    load: () => import('./dialects/main.ts'),
  },
  dashboard: {
    summary: 'time of the dashboard with 100,000 sessions and a session of 400 turns, compared with Inspect',
    load: () => import('./dashboard/main.ts'),
  },
  dapo: {
    summary: 'time of dynamic sampling over the optimum, simulated',
    load: () => import('./dapo/main.ts'),
  },
  envs: {
    summary: "floe's own agents: calls without HTTP, episodes per second, memory, isolation, searches",
    load: () => import('./envs/main.ts'),
  },
  export: {
    summary: "CPU time of exports in each trainer's format, as JSON lines and as Arrow",
    load: () => import('./export.ts'),
  },
  gateway: {
    summary: 'turns per second of a node with one process and with two',
    load: () => import('./gateway/main.ts'),
  },
  lists: {
    summary: 'time of lists and sums of ended sessions, with 100,000 of them',
    load: () => import('./lists.ts'),
  },
  peers: {
    summary: "CPU time and latency of other projects' proxies over those of floe's",
    load: () => import('./peers/main.ts'),
  },
  pool: {
    summary: 'throughput of each way to choose an engine, simulated',
    load: () => import('./pool/main.ts'),
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
  streams: {
    summary: 'time of the first text of a streamed reply, and what streaming costs',
    load: () => import('./streams/main.ts'),
  },
  tools: {
    summary: 'latency of shells and IPython, compared with tmux and Jupyter',
    load: () => import('./tools/main.ts'),
  },
  spans: { summary: 'CPU time and start-up time of a recorded span', load: () => import('./spans.ts') },
};

await runNamed('bench', PROGRAMS);
