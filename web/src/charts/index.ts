/** The pictures: each `draw...` fills a container and returns what changes or removes it. */

export { breakdownOf, drawBreakdown } from "./breakdown";
export type { Chart } from "./frame";
export { drawFront } from "./front";
export { frontOf } from "./front_data";
export { drawMemory } from "./memory";
export { drawTies, haveSameGpus, tiesHeight, tiesOf } from "./ties";
export { drawTimeline } from "./timeline";
export { drawTopology } from "./topology";
export { topologyOf } from "./topology_data";
