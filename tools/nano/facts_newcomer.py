"""What newcomers ask beside the tables: names of topics, one-word talk, things that are
not known.

Each topic is `[name] nouns > answer`; a noun is put into `NOUN_FORMS`, an action after
`@` into `ACTION_FORMS`, and a whole question stands after `=`. `>` without an answer
takes that of the topic of the same name in `facts_llama.py` or `facts_chat.py`.
"""

from __future__ import annotations

from .facts_types import phrases

NOUN_FORMS = phrases(
    """
    What is {n}? / Explain {n}. / Tell me about {n}. / Define {n}. / Describe {n}. / {n} / {n}?
    / What does {n} mean? / What does {n} do? / How does {n} work? / What is meant by {n}? /
    What do you know about {n}? / Can you explain {n}? / Why do we need {n}? / What is the point
    of {n}? / I do not understand {n}. / Tell me what {n} is. / Explain {n} to me. / Give me the
    idea of {n}. / I want to learn about {n}. / What exactly is {n}? / What is the meaning of
    {n}? / Say something about {n}.
    """
)
ACTION_FORMS = phrases(
    """
    How do I {n}? / How can I {n}? / How to {n}? / How to {n} / Tell me how to {n}. / Show me
    how to {n}. / I want to {n}. / What is the way to {n}? / Can I {n}? / How does one {n}? /
    What must I do to {n}? / Which command do I need to {n}? / What do I type to {n}? / Is it
    possible to {n}? / I would like to {n}. / Explain how to {n}. / Help me to {n}. / What is
    the command to {n}? / I need to {n}. / {n}?
    """
)

LLAMA_MORE = """
[stage-1] tokenization; tokenizing; text to tokens >
[stage-2] the tokens tensor; the token tensor >
[stage-3] the loop over the sequence; the generation loop >
[stage-4] the input tensor; the embedding lookup >
[stage-5] the transformer block; a transformer block; transformer blocks >
[stage-6] the attention pre-norm; the attention norm >
[stage-7] attention; self-attention; the attention mechanism; attention in a transformer >
[stage-8] xq, xk and xv; queries, keys and values; wq, wk and wv >
[stage-9] the reshape to heads; splitting into heads >
[stage-10] rotary embedding; rotary position embedding; position encoding >
[stage-11] the KV cache update; updating the cache >
[stage-12] repeat heads; repeating the heads >
[stage-13] scores, mask and softmax; attention scores >
[stage-14] the attention output; wo >
[stage-15] the attention residual >
[stage-16] the feed-forward pre-norm; the feed-forward norm >
[stage-17] feed-forward; the feed-forward network; the MLP; w1, w2 and w3 >
[stage-18] the feed-forward residual >
[stage-19] output norm and logits; the output layer; the output matrix >
[stage-20] sampling; choosing the next token >
[stage-21] token to text; detokenization; decoding tokens to text >
[llama] a Llama model; the Llama model; Llama 3; Llama 3.1; the Llama architecture >
[token] a token; tokens >
[logits] logits; the logits; a logit >
[softmax] softmax; the softmax function >
[kv-cache] the KV cache; KV caching; a key-value cache >
[gqa] grouped-query attention; GQA; grouped queries >
[rope] RoPE; rope embedding >
[rms-norm] RMS norm; RMSNorm; root mean square norm >
[swiglu] SwiGLU; the SwiGLU activation >
[residual] a residual connection; residual connections; the residual stream; skip connections >
[temperature] temperature; the temperature; the temperature setting >
[bfloat16] bfloat16; bf16; the bfloat16 format >
[embedding] an embedding; embeddings; token embeddings >
[attention-why] the causal mask; the attention mask; masking >
[letters] the shape letters; the letters of the shapes >
[stages] the number of stages; =How many stages does a run have?; =How many steps are there in the
  trace?; =Number of stages?; =What is the number of stages?; =stage count; =How many stages are
  in the run? >
[transformer] a transformer; transformers; the transformer architecture > A transformer is a
  network of blocks, each with attention and a feed-forward part.
[language-model] a language model; language models; LLMs; an LLM > A language model gives each
  possible next token a probability.
[prompt] a prompt; prompts > A prompt is the text that you give to the model.
[context] the context window; context length; the context > The context is the number of tokens
  that the model can see at once.
[vocabulary] the vocabulary; a vocabulary > The vocabulary is the list of all tokens that the
  model knows.
[tokenizer] a tokenizer; the tokenizer > A tokenizer turns text into token ids and back.
[bpe] byte pair encoding; BPE; byte-level BPE > Byte pair encoding starts from bytes and joins the
  pair with the lowest rank again and again.
[weights] weights; the weights; parameters; model weights > Weights are the learned numbers of a
  model, kept in matrices.
[layer] a layer; layers; the layers of a model > A layer is one transformer block; the model runs
  L of them one after another.
[head] an attention head; attention heads; multi-head attention > A head is one part of attention
  with queries, keys and values of size h.
[query] a query; queries > A query asks which earlier tokens matter for this token.
[key] a key vector; keys in attention > A key says what a token offers to the queries.
[value] a value vector; values in attention > A value is what a token gives to those that look at
  it.
[greedy] greedy decoding; greedy sampling; temperature 0; temperature zero > Greedy decoding
  always takes the token with the highest score.
[top-k] top-k; top k; top-k sampling > Top-k keeps the k tokens with the highest scores.
[top-p] top-p; top p; nucleus sampling; top-p sampling > Top-p keeps the likeliest tokens until
  their probabilities sum to p.
[seed] a seed; the seed; a random seed > With the same seed you get the same sampled answer.
[prefill] prefill; prompt processing; the prefill phase > Prefill runs all tokens of the prompt at
  once and fills the KV cache.
[decode] decoding; the decode phase; token generation > Decoding runs one new token at a time with
  the cache.
[quantization] quantization; quantized weights; quantizing > Quantization stores weights in few
  bits, so that the model takes less memory.
[nf4] nf4; the nf4 format; NormalFloat > nf4 stores a weight in 4 bits, with a scale for each
  block.
[int8] int8; int8 weights; int8 quantization > int8 stores a weight in 8 bits, with a scale for
  each block.
[silu] silu; the silu function; SiLU; swish > silu of x is x times the sigmoid of x.
[matmul] matrix multiplication; a matrix product; matmul > A matrix product sums rows times
  columns; most of the work of a model is this.
[training] training; training a model; learning > Training changes the weights so that the right
  next token becomes likelier.
[loss] the loss; cross entropy; the training loss > The loss is small when the model gives the
  right next token a high probability.
[network] a neural network; neural networks > A neural network is a chain of matrix products with
  simple functions between them.
[tensor-word] a tensor; tensors > A tensor is an array of numbers with a shape and a dtype.
[special] special tokens; a special token; the end token > Special tokens mark the start of text,
  roles and the end of an answer.
[system-prompt] a system prompt; the system prompt; system prompts > A system prompt tells the
  model how it should answer.
[chat-template] a chat template; a chat format; chat templates > A chat format puts special tokens
  around each message.
[hallucination] hallucination; hallucinations; made-up answers > A hallucination is an answer that
  sounds right and is wrong.
[vector] a vector; vectors; a hidden state > A vector is a row of numbers; a token has one of size
  D.
[dot-product] a dot product; the dot product > A dot product multiplies two rows number by number
  and sums.
"""

LIBRARY_MORE = """
[library] llama-bolts; this library; this project; this program; the llama-bolts project >
[tensor] ml.Tensor; the Tensor class; a Tensor in this library >
[views] =Is reshape a copy?; =Is a transpose a copy?; =Does slice copy the data?; =Do views share
  memory?; =Does a reshape make a copy?; =Does transpose copy memory?; =Are slices copies?; =Is
  the memory copied by a view?; =reshape copies data?; a view; views; views in this library >
[kernels] the kernels; the C kernels; csrc; the C code >
[isa] the instruction sets; AVX-512 in the kernels; NEON; AVX2; SIMD >
[log] debug.log; the debug log; the shape trace; the trace >
[run] @run this; @start the chat; @run the program; @run the library; @open a chat >
[prompt] @ask one question; @give a prompt; @use -p; @ask from the shell >
[install] @install it; @install this library; @install llama-bolts; @set up the project;
  installation >
[own-model] @use my own Llama; @load another model; @use my own model; @use -m; @load Llama 3 >
[layout] the package layout; the packages; the structure of the code; the folders of src >
[imports] the import direction; the order of imports; the imports >
[checkpoint] the checkpoint package; loading weights; @load the weights >
[pytorch] =Is torch needed?; =Do I need PyTorch?; =Does it need torch?; =Is it based on PyTorch?;
  PyTorch here; =Do you use PyTorch?; =Must I install torch?; =Does this use torch?; =Is pytorch
  necessary?; =Need pytorch?; =torch needed?; =Can I run it without PyTorch? >
[license] the licence; the license; the licence of this project >
[params] params.json; the params.json file >
[help] @see all options; @list the options; the command line options; the options; the flags >
[metadata] @list the tensors; @see the weights; --metadata; @see all tensors >
[debug-log] @write a debug log; @see the shapes; @get the trace; --debug-log > Use python -m
  src.main --debug-log and a prompt: it writes every tensor with its shape.
[quantize] @quantize a model; @use less memory; @use 4 bits; --quantize > Use --quantize nf4 for 4
  bits or --quantize int8 for 8 bits.
[temperature-flag] @set the temperature; @make answers less random; --temperature > Use
  --temperature and a number; 0 always takes the likeliest token.
[seed-flag] @repeat an answer; @set the seed; --seed > Use --seed and a number: the answer is the
  same each time.
[threads] @set the threads; @use more cores; @use all cores; --threads > Use -t and the number of
  threads; all processors are used without it.
[save] @save a chat; @save the conversation; /save > Type /save and a file name in the chat; /load
  brings it back.
[exit] @leave the chat; @stop the chat; @quit the chat; @close the chat > Type /exit or press
  Ctrl-D.
[clear] @clear the chat; @forget the conversation; @start over; /clear > Type /clear to forget the
  conversation.
[commands] the chat commands; @see the commands; slash commands; /help > Type /help in the chat to
  see all commands.
[system-flag] @set a system prompt; @change your style; -s > Use -s and a text, or /system in the
  chat.
[diagrams] the diagrams; @draw the stages; --diagrams > Use --diagrams and a folder: each stage is
  drawn as SVG.
[explain] @see a stage explained; --explain; @read about a stage > Use --explain and a stage
  number from 1 to 21.
[speed] @measure the speed; --bench; @run a benchmark > Use --bench: it shows tokens per second.
[formats] the file formats; the model formats; @load safetensors; @load GGUF > Models load from
  Meta's .pth, from safetensors and from GGUF files.
"""

TALK_MORE = """
[hello] =hello; =hi; =hey; =yo; =hiya; =greetings; =hello there; =hey there; =hi nano; =hello
  nano; =heya; =howdy; =hallo; =good day; =hey nano; =hi, anyone there; =hello again; =hola; =sup;
  =hii; =hello :); =hey :); =hi friend; =hello my friend; =hi bot; =hello computer; =:); =hi hi >
[morning] =morning; =good morning; =good morning nano >
[evening] =evening; =good evening; =good afternoon >
[how] =how are you; =how are you today; =how is it going; =how are things; =how do you do; =are
  you ok; =you good; =what is up; =how r u; =hows life >
[who] =who are you; =who; =what are you; =introduce yourself; =are you a bot; =are you chatgpt;
  =are you an AI; =what model are you; =which model is this; =who am I talking to; =nano >
[name] =your name; =name; =do you have a name; =tell me your name; =what do I call you >
[can] =what can you do; =what do you know; =what can I ask; =what are you good at; =what questions
  can I ask; =what topics do you know; =what else can you do; =capabilities; =skills; =features >
[maker] =who made you; =who built you; =who created you; =who is your creator; =who programmed
  you; =who wrote you >
[big] =how big are you; =how large are you; =your size; =how many parameters; =are you small;
  =what is your size >
[smart] =are you smart; =are you clever; =are you stupid; =you are stupid; =are you dumb; =are you
  conscious >
[trust] =are you sure; =sure; =really; =really now; =is that right; =is that true; =can I trust
  you; =are you certain >
[human] =are you human; =are you real; =are you alive; =are you a robot; =are you a machine >
[age] =how old are you; =your age; =what is your age; =when were you born; =when were you made; =are
  you old; =are you new; =how old is nano; =do you have a birthday; =age >
  I have no age, I am a small computer program.
[thanks] =thanks; =thank you; =thx; =ty; =thanks a lot; =thank you so much; =many thanks; =cheers;
  =much appreciated; =thanks nano; =thank you nano; =great, thanks; =ok thanks; =perfect, thank
  you; =thank u; =thanks so much; =tnx; =tysm; =thanks for the help; =thanks man; =merci;
  =gracias; =thanks again; =thanks friend; =thank you, Nano >
[bye] =bye; =goodbye; =bye bye; =see you; =see ya; =cya; =good night; =later; =farewell; =quit;
  =exit; =stop; =end; =I have to go; =that is all; =take care; =ciao; =bye nano; =see you tomorrow;
  =good bye; =bye for now; =gtg; =I am done; =see you soon; =have a nice day; =talk later; =night;
  =done >
[good] =good; =nice; =great; =cool; =wow; =awesome; =perfect; =well done; =good job; =correct;
  =right; =yes, that is right; =excellent; =amazing; =good answer; =nice one; =very good; =you are
  great; =sweet; =neat; =super; =fantastic; =wonderful; =not bad; =that is great; =I like it; =so
  good; =nice job; =how nice; =that is cool; =very nice; =great job; =wow, nice; =brilliant; =bravo
  >
[wrong] =wrong; =no; =nope; =that is wrong; =incorrect; =not true; =false; =bad; =bad answer; =no,
  wrong; =you made a mistake; =that is not correct;
  =nah; =no way; =not really; =no no; =you are mistaken; =try again; =not right; =no, it is not >
[joke] =joke; =tell a joke; =another joke; =say something funny; =make me laugh; =got a joke; =a
  joke >
[poem] =poem; =a poem; =write poetry; =make a poem; =write a poem for me >
[ok] =ok; =okay; =k; =kk; =I see; =yes; =yep; =yeah; =sure thing; =alright; =fine; =got it;
  =understood; =hm; =hmm; =aha; =lol; =haha; =right then; =interesting;
  =oh; =oh ok; =ah; =makes sense; =good to know; =yup; =ya; =hehe; =lmao; =ha; =nvm; =never mind; =I
  understand; =ok cool; =ok then; =ok good; =so; =well; =rofl; =hahaha >
[sorry] =sorry; =my bad; =oops; =pardon; =excuse me; =apologies >
[help] =help; =help me; =help please; =I need help; =assist me; =please help; =can you help; =can
  you help me; =what now; =how does this work; =what should I ask; =instructions; =menu; =start;
  =test; =? >
[hungry] =are you hungry; =what do you eat; =do you sleep >
[days] =days in a week; =number of days in a week; =how many days in a week; =days of the week >
[months] =months in a year; =number of months in a year; =how many months in a year >
[sky] =sky color; =why is the sky blue; =the color of the sky >
[animal] a llama; llamas; =is a llama an animal >
[pi] pi; =value of pi; =the value of pi >
[relativity] relativity; the theory of relativity >
[quantum] a quantum computer; quantum computers; quantum computing >
[einstein] Albert Einstein; Einstein; =who is einstein; =who was albert einstein >
[hurt] =I am sad; =I am bored; =I am tired; =I feel bad; =I am lonely > I am sorry to hear that. I
  can only tell you about capitals, flags, sums and Llamas.
[happy] =I am happy; =I feel good; =I am fine; =I am good; =fine, and you > I am glad to hear
  that.
[love] =I love you; =I like you; =you are cute; =will you marry me > That is kind, but I am only a
  small program.
"""

ALIASES = (
    ("USA", "the United States"),
    ("US", "the United States"),
    ("America", "the United States"),
    ("the USA", "the United States"),
    ("U.S.", "the United States"),
    ("UK", "the United Kingdom"),
    ("the UK", "the United Kingdom"),
    ("Britain", "the United Kingdom"),
    ("Great Britain", "the United Kingdom"),
    ("England", "the United Kingdom"),
    ("Holland", "the Netherlands"),
    ("Czechia", "the Czech Republic"),
    ("Burma", "Myanmar"),
    ("UAE", "the United Arab Emirates"),
    ("Cote d'Ivoire", "Ivory Coast"),
    ("Timor-Leste", "East Timor"),
    ("Swaziland", "Eswatini"),
    ("Cabo Verde", "Cape Verde"),
    ("the Vatican", "Vatican City"),
    ("DRC", "the Democratic Republic of the Congo"),
    ("Macedonia", "North Macedonia"),
)
"""Other names of countries, used in questions alone."""

UNKNOWN_NOUNS = phrases(
    """
    a volcano / gravity / a cell / an atom / electricity / a virus / the internet / a rainbow /
    a triangle / algebra / a prime number / oxygen / a whale / a cactus / a bicycle / chess /
    football / tennis / opera / jazz / a guitar / philosophy / religion / economics / money / a
    bank / a mortgage / bitcoin / a blockchain / a contract / a law / marketing / psychology /
    history / art / poetry / a novel / grammar / a verb / a comet / a galaxy / the sun / a
    tornado / an earthquake / a glacier / the ozone layer / a dinosaur / evolution / a gene /
    cancer / a vitamin / protein / cholesterol / diabetes / yoga / a marathon / a sandwich /
    sushi / cheese / chocolate / a recipe / tea / beer / a battery / a laser / a microscope / a
    telescope / a rocket / a satellite / a compiler / an operating system / a database / HTML /
    JavaScript / Linux / Excel / a spreadsheet / a router / a browser / an engine / a bridge / a
    pyramid / a castle / a knight / an emperor / a president / a parliament / the United Nations
    / NATO / a passport / a visa / a tax / a unicorn / magic / time / happiness / freedom / the
    soul / a dream / music / a painting
    """
)
UNKNOWN_PEOPLE = phrases(
    """
    Napoleon / Cleopatra / Julius Caesar / Isaac Newton / Marie Curie / Charles Darwin / Mozart
    / Beethoven / Shakespeare / Leonardo da Vinci / Michelangelo / Picasso / Van Gogh / Gandhi /
    Nelson Mandela / Abraham Lincoln / George Washington / Winston Churchill / Plato / Aristotle
    / Socrates / Galileo / Columbus / Elvis Presley / Michael Jackson / Madonna / Taylor Swift /
    Lionel Messi / Cristiano Ronaldo / Serena Williams / Bill Gates / Steve Jobs / Elon Musk /
    Donald Trump / Barack Obama / Harry Potter / Batman / Spider-Man / Sherlock Holmes / Frodo /
    Darth Vader / Zeus
    """
)
UNKNOWN_FORMS: tuple[tuple[str, ...], tuple[str, ...]] = (
    phrases(
        """
        What is {n}? / Explain {n}. / Tell me about {n}. / What does {n} mean? / How does {n}
        work? / Define {n}. / Why is there {n}? / Who invented {n}? / When was {n} invented? /
        How much does {n} cost? / Where can I find {n}? / How do I get {n}? / {n} / {n}? / What
        color is {n}? / How old is {n}? / Do you like {n}? / Write a story about {n}. / Can you
        draw {n}? / What is the price of {n}? / How big is {n}? / Sing about {n}. / Which {n} is
        the best? / Translate {n} into Italian. / Who has {n}? / Write two lines about {n} in
        French. / Where does {n} come from? / Is {n} good for me? / How long does {n} take?
        """
    ),
    phrases(
        """
        Who is {n}? / Who was {n}? / Tell me about {n}. / When was {n} born? / Where was {n}
        born? / How old is {n}? / {n} / What did {n} do? / Is {n} alive? / When did {n} die? /
        What do you know about {n}? / Do you know {n}? / Who is the wife of {n}? / What is {n}
        famous for?
        """
    ),
)
UNKNOWN_PLACE_FORMS = phrases(
    """
    How large is {n}? / How many people are there in {n}? / population of {n} / Who governs {n}?
    / What is {n} famous for? / Tell me the history of {n}. / Is it cold in {n}? / What time is
    it in {n}? / What do people eat in {n}? / How old is {n}? / How expensive is {n}? / Can I
    travel to {n}? / Which rivers are in {n}? / What is the area of {n}? / Who was born in {n}?
    / money of {n} / What is the best hotel in {n}? / Describe the people of {n}.
    """
)
UNKNOWN_CITIES = phrases(
    """
    Lyon / Munich / Hamburg / Milan / Naples / Barcelona / Seville / Porto / Geneva / Zurich /
    Chicago / Seattle / Miami / Houston / Los Angeles / San Francisco / Las Vegas / Detroit /
    Osaka / Kyoto / Mumbai / Kolkata / Shanghai / Hong Kong / Dubai / Karachi / Lagos / Cape
    Town / Casablanca / Melbourne / Perth / Vancouver / Montreal / Rio de Janeiro / Sao Paulo /
    Krakow / Antwerp / Rotterdam / Marseille / Bavaria / Tuscany / Siberia / Patagonia / Sicily
    / Corsica / Greenland / Scotland / Wales / Catalonia / Tibet
    """
)
MORE_UNKNOWN_LANDS = phrases(
    """
    Arrakis / Tatooine / Naboo / Xanadu / Erewhon / Laputa / Rivendell / Rohan / Krypton / Asgard /
    Arendelle / Bedrock / Azeroth / Tamriel / Equestria / Kakania / Panem / Hogwarts / Themyscira /
    Vulgaria / Grand Fenwick / Elfland / Fairyland / Eurasia / Oceania / Scandinavia / Sumatra / the
    Sahara / the Alps / the Amazon / Venus / Saturn / Pluto / Neptune / the galaxy / the universe /
    the forest / the sea / my town / my street / your house / heaven / nowhere / everything / the
    kitchen / the internet / a planet / the sky
    """
)
"""Not in `UNKNOWN_LANDS`, of which a tenth of the questions is held out."""
MORE_CITIES = phrases(
    """
    Sydney / Toronto / Istanbul / New York / Calgary / Brisbane / Auckland / Johannesburg / Durban /
    Marrakesh / Alexandria / Tel Aviv / Jeddah / Lahore / Bangalore / Chennai / Yangon / Saigon /
    Da Nang / Busan / Nagoya / Hiroshima / Guangzhou / Vladivostok / Saint Petersburg / Odessa /
    Gdansk / Brno / Salzburg / Graz / Basel / Lausanne / Turin / Venice / Florence / Palermo /
    Valencia / Bilbao / Malaga / Nice / Bordeaux / Toulouse / Strasbourg / Cologne / Frankfurt /
    Stuttgart / Dresden / Leipzig / Bruges / Utrecht / Aarhus / Bergen / Gothenburg / Tampere /
    Cork / Belfast / Glasgow / Liverpool / Manchester / Birmingham / Philadelphia / San Diego /
    Portland / Cleveland / Cincinnati / Orlando / Tampa / Memphis / Buffalo / Newark / Guadalajara /
    Cancun / Medellin / Cordoba / Rosario / Guayaquil / Cusco / Salvador / Recife
    """
)
"""Towns that are no capital, asked for with yes or no alone."""
