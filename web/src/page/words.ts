/** What the words of the page mean, once for all of its parts. */
export const WORDS = {
  tp: "Tensor parallel: so many GPUs share every layer.",
  pp: "Pipeline parallel: so many stages, each with some of the layers.",
  dp: "Data parallel: so many copies of the model, each with a part of the batch.",
  cp: "Context parallel: so many groups share a sequence.",
  ep: "Expert parallel: the experts of a layer are spread over so many GPUs.",
  "micro-batch": "Sequences that pass through a stage at a time.",
  virtual: "Parts that every stage is cut into, so that it waits less.",
  ZeRO: "Copies share optimizer state (1), gradients (2), weights (3).",
  recompute: "Activations are computed again instead of kept: slower, less memory.",
  "balanced layers": "Stages hold unequal numbers of layers, so that all take as long.",
  "free layers": "Every stage holds a number of layers of its own; some may hold none.",
  "host optimizer": "The optimizer's state is kept in the memory of the host.",
  bubble: "Time in which a stage waits for the stages before and behind it.",
  iteration: "One step of training: a global batch forward and backward, then the update.",
  "tokens a second": "Speed of the whole job, all GPUs together.",
  interval: "Four of five measured runs end inside it; the large figure is the middle.",
  training: "The whole run: all tokens, with what is lost to checkpoints and restarts.",
  cost: "GPU hours of the run times their price; prices stand in the form.",
  MFU: "Model FLOP utilisation: share of the GPUs' peak speed that the model's arithmetic gets.",
  memory: "The fullest GPU at its fullest moment, as a share of what it has.",
  global_batch: "Sequences that all GPUs together train on before the weights change.",
  objective:
    "Fastest: most tokens a second. Shortest run: fewest days, interruptions counted. " +
    "Cheapest run: fewest dollars for all tokens.",
  mode: "All GPUs of the rows must work, or plans may leave some out.",
  rule:
    "A strategy for which a line is true is dropped. Names: $tp, $pp, $dp, $cp, $ep, " +
    "$micro_batch, $virtual_stages, $zero_stage, … with &&, ||, ==, <.",
} as const;

export type Word = keyof typeof WORDS;

/** Those that tell strategies apart, for the list below the table. */
export const STRATEGY_WORDS: readonly Word[] = [
  "tp",
  "pp",
  "dp",
  "cp",
  "ep",
  "micro-batch",
  "virtual",
  "ZeRO",
  "recompute",
  "host optimizer",
  "balanced layers",
  "free layers",
  "MFU",
];
