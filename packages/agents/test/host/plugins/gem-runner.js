// A runner that plays the environment of its task, or the one that its configuration names.
export { GEMRunner as default } from 'floe/plugins';
