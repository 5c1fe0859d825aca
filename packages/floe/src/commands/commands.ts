import type { Command } from 'commander';

type Register = (program: Command) => void;

/**
 * Functions that load each command by its name. Commands are loaded on demand, because the modules of the server and the simulated engine
 * take half a second to load.
 */
export const COMMANDS: Readonly<Record<string, () => Promise<Register>>> = {
  up: async () => (await import('./up.ts')).registerUp,
  server: async () => (await import('./server.ts')).registerServer,
  gateway: async () => (await import('./gateway.ts')).registerGateway,
  sim: async () => (await import('./sim.ts')).registerSim,
  submit: async () => (await import('./submit.ts')).registerSubmit,
  status: async () => (await import('./status.ts')).registerStatus,
  watch: async () => (await import('./watch.ts')).registerWatch,
  results: async () => (await import('./results.ts')).registerResults,
  cancel: async () => (await import('./cancel.ts')).registerCancel,
  export: async () => (await import('./export.ts')).registerExport,
  import: async () => (await import('./import.ts')).registerImport,
  generate: async () => (await import('./generate.ts')).registerGenerate,
  batch: async () => (await import('./batch.ts')).registerBatch,
  'sim-trainer': async () => (await import('./sim-trainer.ts')).registerSimTrainer,
  trace: async () => (await import('./trace.ts')).registerTrace,
  view: async () => (await import('./view.ts')).registerView,
  artifacts: async () => (await import('./artifacts.ts')).registerArtifacts,
  engines: async () => (await import('./engines.ts')).registerEngines,
  harness: async () => (await import('./harness.ts')).registerHarness,
  image: async () => (await import('./image.ts')).registerImage,
  evaluator: async () => (await import('./evaluator.ts')).registerEvaluator,
  harbor: async () => (await import('./harbor.ts')).registerHarbor,
  env: async () => (await import('./env.ts')).registerEnv,
  tool: async () => (await import('./tool.ts')).registerTool,
  index: async () => (await import('./index-documents.ts')).registerIndex,
  agent: async () => (await import('./agent.ts')).registerAgent,
  tasks: async () => (await import('./tasks.ts')).registerTasks,
  doctor: async () => (await import('./doctor.ts')).registerDoctor,
  cluster: async () => (await import('./cluster.ts')).registerCluster,
  topology: async () => (await import('./topology.ts')).registerTopology,
  demo: async () => (await import('./demo.ts')).registerDemo,
};
