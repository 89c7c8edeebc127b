"""Logs of other programs: what they print, line by line, and small ones as they are read."""

from scalebench.importing.formats import formats
from scalebench.importing.job import Stated, job_of
from scalebench.importing.reader import read_log
from scalebench.importing.steps import steps_of


def log_of(folder, lines, end="\n", own=None):
    """Read a log of these lines, or of a text as it stands."""
    text = lines if isinstance(lines, str) else end.join(lines) + end
    path = folder / "train.log"
    path.write_bytes(text.encode())
    return read_log(path, formats(own, "scalebench.toml") if own else formats())


def steps_in(folder, lines, batch=None):
    return steps_of(log_of(folder, lines), batch)


def job_in(folder, lines, gpus=8, **stated):
    return job_of(log_of(folder, lines), Stated(gpus=gpus, **stated))


def every_2_s(line, steps=12):
    """Return one line a step, every second by the clock another two."""
    return [line.format(2 * i, i=i) for i in range(1, steps + 1)]


DAY = "2024-05-01 10:00:{0:02d}"
LINES = {
    "megatron": (
        " [" + DAY + "] iteration {i:8d}/ 100 | consumed samples: 64 | elapsed time per iteration "
        "(ms): 2000.0 | learning rate: 1.0E-4 | global batch size:    64 | lm loss: 9.1E+00 | "
        "number of skipped iterations:   0 |"
    ),
    "nemo": (
        "Training epoch 0, iteration {i}/99 | lr: 1e-06 | global_batch_size: 64 | global_step: {i}"
        " | reduced_train_loss: 11.0 | train_step_timing in s: 2.0 | consumed_samples: 64"
    ),
    "torchtitan": (
        "[titan] " + DAY + ",000 - root - INFO - step: {i:2}  loss:  7.6  grad_norm: 2.0  "
        "memory: 66.91GiB(37.51%)  tps: 8,192  tflops: 300.1  mfu: 13.99%"
    ),
    "nanogpt": "iter {i}: loss 4.0863, time 2000.00ms, mfu 37.20%",
    "build-nanogpt": "step {i:5d} | loss: 9.50 | lr 1.0e-05 | dt: 2000.0ms | tok/sec: 9",
    "llm-c": (
        "step {i:4d}/19560 | loss 9.5 (+1.2z)| norm 7.5 (+0.0z)| lr 1.2e-05 | 2000.00 ms | "
        "55.1% bf16 MFU | 1588010 tok/s"
    ),
    "nanotron": (
        "[INFO|DP=0|PP=0|TP=0|ip-26]: iteration: {i} / 100 | consumed_tokens: 1.05M | "
        "elapsed_time_per_iteration_ms: 2K | tokens_per_sec: 524K | tokens_per_sec_per_gpu: 65.5K |"
        " global_batch_size: 64 | lm_loss: 9.1 | lr: 0.0003 | model_tflops_per_gpu: 400"
    ),
    "olmo": (
        DAY + ".000 host:0  olmo.train:908  INFO  [step={i}/739,epoch=0]\n"
        "    train/CrossEntropyLoss=9.1\n    throughput/device/tokens_per_second=26,676\n"
        "    throughput/device/batches_per_second=0.5"
    ),
    "composer": (
        "[batch={i}/100]:\n\t Train time/batch: 9\n\t Train loss/train/total: 9.1\n"
        "\t Train throughput/batches_per_sec: 0.5"
    ),
    "maxtext": (
        "completed step: {i}, seconds: 2.000, TFLOP/s/device: 134.9, Tokens/s/device: 8671.9, "
        "total_weights: 196608, loss: 9.1"
    ),
    "openmmlab": (
        DAY + ",420 - mmdet - INFO - Epoch [1][{i}/29317]\tlr: 2.0e-02, eta: 1 day, 16:24:41, "
        "time: 2.000, data_time: 0.009, memory: 3946, loss_cls: 0.4, loss: 1.0037"
    ),
    "mmengine": (
        "2024/05/01 10:00:{:02d} - mmengine - INFO - Epoch(train)  [1][{i:4d}/1051]  lr: 9.0e-09  "
        "eta: 8 days, 4:44:34  time: 12.5  data_time: 9.1  memory: 17929  loss: 7.6  loss_cls: 3.1"
    ),
    "yolox": (
        DAY + " | INFO     | yolox.core.trainer:259 - epoch: 1/100, iter: {i}/983, mem: 7746Mb, "
        "iter_time: 2.000s, data_time: 0.409s, total_loss: 5.8, lr: 2.3e-05, ETA: 9:29:49"
    ),
    "detectron2": (
        "[05/01 10:00:{:02d} d2.utils.events]:  eta: 0:12:17  iter: {i}  total_loss: 1.2  "
        "loss_cls: 0.5  time: 1.5000  last_time: 1.6  data_time: 0.0123  lr: 0.0001  max_mem: 2345M"
    ),
    "metric-logger": (
        "Epoch: [0]  [{i:4d}/1251]  eta: 0:12:17  lr: 0.1  loss: 6.9 (6.9)  time: 2.0  data: 0.1  "
        "max mem: 1234"
    ),
    "timm": (
        "Train: 0 [{i:4d}/1251 (  4%)]  Loss: 6.9 (6.9)  Time: 2.000s,  731.43/s  (0.400s,  "
        "640.0/s)  LR: 0.1  Data: 0.010 (0.010)"
    ),
    "open-clip": (
        "2024-05-01,10:00:{:02d} | INFO | Train Epoch: 0 [ {i}/12800000 (0%)] Data (t): 0.010 "
        "Batch (t): 2.000, 15753.8/s, 1969.2/s/gpu LR: 0.1 Loss: 8.9 (9.0)"
    ),
    "paddle": (
        "[05/01 10:00:{:02d}] ppdet.engine INFO: Epoch: [0] [{i}/1000] learning_rate: 0.01 "
        "loss: 2.0 eta: 1:00:00 batch_cost: 2.0000 data_cost: 0.01 ips: 16.0 images/s"
    ),
    "average-meter": (
        "Epoch: [0][{i:3d}/391]\tTime  2.000 ( 2.456)\tData  0.012 ( 0.034)\tLoss 2.3 (2.4)"
    ),
    "fairseq": (
        DAY + ' | INFO | train_inner | {{"epoch": 1, "update": 0.1, "loss": "12.5", "wps": "9000", '
        '"ups": "0.5", "wpb": "18000", "bsz": "64", "num_updates": "{i}", "train_wall": "85"}}'
    ),
    "dllogger": (
        "DLL " + DAY + ".000000 - Epoch: 0 Iteration: {i}  train.loss : 7.1 None "
        "train.compute_ips : 32.1 images/s train.total_ips : 32.00 images/s train.lr : 0.1 "
    ),
    "dllogger of FastPitch": (
        "DLL " + DAY + ".659718 - epoch    1 | iter   {i}/48 | loss 40.97 | mel loss 35.04 | "
        "   5730.98 frames/s | took 2.00 s | lrate 3.16e-06"
    ),
    "dllogger of Tacotron": (
        "DLL " + DAY + ".154306 - (60, {i}) glob_iter/iters_per_epoch : {i}/130 \n"
        "DLL " + DAY + ".254306 - (60, {i}) train_items_per_sec : 17340.7 \n"
        "DLL " + DAY + ".354306 - (60, {i}) train_iter_time : 2.0 "
    ),
    "megatron-bridge": "Step Time : 2.00s GPU utilization: 528.1MODEL_TFLOP/s/GPU",
    "nvidia-dlrm": "Epoch:[0/1] [{i}/12828]  eta: 1:28:44  loss: 0.1782  step_time: 2.0  lr: 0.8",
    "deepspeed": (
        "[" + DAY + ",000] [INFO] [timer.py:260:stop] epoch=0/micro_step={i}/global_step={i}, "
        "RunningAvgSamplesPerSec=303.1, CurrSamplesPerSec=315.5, MemAllocated=17.54GB, "
        "MaxMemAllocated=66.97GB"
    ),
    "transformer-xl": (
        "| epoch   1 step {i:8d} | batches {i:6d} / 1681 | lr 0.0 | ms/batch 2000.0 | tok/s   9000 "
        "| loss 9.1 | ppl 9000"
    ),
    "key-value": "step={i} loss=9.1 step_time=2.0 lr=0.1",
    "espnet": (
        "[gpu01:0/2] " + DAY + ",080 (trainer:464) INFO: 1epoch:train:1-{i}batch: "
        "iter_time=2.878e-04, forward_time=0.134, loss=123.963, loss_att=77.4, train_time=2.000"
    ),
    "wenet": DAY + ",107 DEBUG TRAIN Batch 4/{i} loss 12.646465 loss_att 10.9 lr 0.0003 rank 0",
    "icefall": (
        DAY + ",699 INFO [train.py:756] Epoch 0, batch {i}, loss[loss=0.5521, simple_loss=1.1, "
        "over 2432.00 frames.], tot_loss[loss=0.5521, over 2432.00 frames.], batch size: 32"
    ),
    "paddlenlp": (
        "[" + DAY + ",123] [    INFO] - loss: 9.27, learning_rate: 1e-05, global_step: {i}, "
        "interval_runtime: 2.0, interval_samples_per_second: 32.0, interval_steps_per_second: 0.5"
    ),
    "megatron of GPT-NeoX": (
        " samples/sec: 32.144 | iteration {i:8d}/  320000 | elapsed time per iteration (ms): 2000.0"
        " | learning rate 4.687E-07 | approx flops per GPU: 34.2TFLOPS | lm_loss: 1.097E+01 |"
    ),
    "icefall of its speech synthesis": (
        DAY + ",699 INFO [train.py:7] Epoch 1, batch {i}, global_batch_idx: {i}, batch size: 60, "
        "loss[loss=0.9, over 900.0 samples.], tot_loss[loss=0.95, over 900.0 samples.], "
    ),
    "paddle of PaddleClas": (
        "[" + DAY + "] ppcls INFO: [Train][Epoch 1/120][Iter: {i}/1251]lr(Linear): 0.1, loss: 6.9, "
        "batch_cost: 2.00000s, reader_cost: 0.0001, ips: 32.00000 samples/s, eta: 1:00:00"
    ),
    "paddle of PaddleClas 2": (
        DAY + " INFO: epoch:0  , train step:{i}  , loss: 6.9, lr: 0.1, batch_cost: 2.00000 s, "
        "reader_cost: 0.00056 s, ips: 32.00000 images/sec."
    ),
    "paddle of PaddleOCR": (
        "[" + DAY + "] root INFO: epoch: [0/100], iter: {i}, lr: 0.001000, acc: 0.5, loss: 0.7, "
        "reader_cost: 1.0 s, batch_cost: 2.00000 s, samples: 64, ips: 32.00000"
    ),
    "metric-logger of DINOv2": (
        "I20240501 " + DAY[11:] + " 12345 dinov2 helpers.py:103] Training  [{i:6d}/125000]  "
        "eta: 1 day, 2:03:04  lr: 0.1 (0.1)  total_loss: 9.1 (9.2)  time: 2.0  data: 0.1  "
        "max mem: 20100"
    ),
    "metric-logger of LAVIS": (
        "Train: data epoch: [1]  [{i:4d}/1251]  eta: 0:12:17  lr: 0.1  loss: 6.9  time: 2.0  "
        "data: 0.1  max mem: 1234"
    ),
    "mxnet": "INFO:root:Epoch[0] Batch [{i}]\tSpeed: 32.00 samples/sec\taccuracy=0.519",
    "mxnet of 1.5": "INFO:root:Epoch[0] Batch [0-{i}]\tSpeed: 32.00 samples/sec\taccuracy=0.519",
    "mindspore": (
        "epoch: {i} step: 1, loss is 0.35\nepoch time: 2000.000 ms, per step time: 2000.000 ms"
    ),
    "mindspore of MindFormers": (
        DAY + ",100 - mindformers[callback.py:314] - INFO - {{ Epoch:[  1/  2], step:[{i:5d}/ 250]"
        ", loss: 3.420, per_step_time: 2000ms, lr: 9.9e-06, overflow cond: False"
    ),
    "mindspore of MindYOLO": (
        DAY
        + ",100 [INFO] Epoch 1/200, Step {i}/3995, imgsize (640, 640), loss: 11.67\n"
        + DAY
        + ",100 [INFO] Epoch 1/200, Step {i}/3995, step time: 2000.00 ms"
    ),
    "opennmt": (
        "[" + DAY + ",773 INFO] Step {i}/200000; acc:  31.18; ppl: 57.53; xent: 4.05; lr: 0.00028; "
        "5092/261 tok/s;   {0} sec"
    ),
    "opennmt of its first version": (
        "Epoch  1, {i:5d}/37527; acc:   3.99; ppl: 12.57; xent:   9.46; 3438 src tok/s; "
        "3517 tgt tok/s; {0:6d} s elapsed"
    ),
    "marian": (
        "[" + DAY + "] Ep. 1 : Up. {i} : Sen. 12,800 : Cost 238.80 : Time 2.00s : 4419.09 words/s"
    ),
    "tensorflow": "INFO:tensorflow:global step {i}: loss = 2.1000 (2.000 sec/step)",
    "tensorflow of object detection": "INFO:tensorflow:Step {i} per-step time 2.000s loss=0.66",
    "tf-estimator": "INFO:tensorflow:loss = 2.30251, step = {i} (2.000 sec)",
    "tf-estimator of the model garden": (
        "keras_utils.py:148] TimeHistory: 2.00 seconds, 32.00 examples/second between steps 0 and "
        "{i}"
    ),
    "clu": (
        "I0501 " + DAY[11:] + ".123456 1401 logging_writer.py:48] [{i}] loss=2.1, "
        "steps_per_sec=0.5, learning_rate=0.1"
    ),
    "dlrm": "Finished training it {i}/2048 of epoch 0, 2000.00 ms/it, loss 0.5, accuracy 80 %",
    "internevo": (
        DAY + ",977 INFO train.py:317 in record -- tflops=188.0,step={i},loss=5.4,"
        "tgs (tokens/gpu/second)=4233.73,lr=7.6e-06,loss_scale=65536.0,fwd_bwd_time=1.72"
    ),
    "slowfast": (
        'json_stats: {{"_type": "train_iter", "dt": 2.0, "dt_data": 0.1, "epoch": "1/196", '
        '"eta": "10:00:00", "gpu_mem": "10.12G", "iter": "{i}/3000", "loss": 3.1}}'
    ),
    "fairseq with the parts of its wall": (
        DAY + " | INFO | train_inner | epoch 001: {i} / 160 loss=9.2, wps=57.3, ups=0.04, wpb=1613,"
        " bsz=64, num_updates={i}, lr=2e-05, gnorm=3.2, train_wall=13, wall={0}"
    ),
    "fairseq-epochs": (
        DAY + " | INFO | train | epoch 001 | loss 5.7 | nll_loss 4.2 | wps 9000 | ups 0.5 | "
        "wpb 18000 | bsz 64 | num_updates {i} | lr 0.0001 | train_wall 15 | wall 331"
    ),
    "fairseq of its first years": (
        "| epoch 001  {i} / 8223 loss=1.27 (1.50), wps=32, wpb=64, bsz=64, lr=0.001, clip=100%"
    ),
    "mindcv": (
        "[" + DAY + "] mindcv.utils.callbacks INFO - Epoch: [1/90], batch: [{i}/5004], loss: 6.9, "
        "lr: 0.002, time: 2.0"
    ),
    "paxml": (
        "I0501 10:00:{:02d}.123456 1401 programs.py:290] [PAX STATUS]: step_i: {i}, training loss: "
        "7.1, steps/sec 0.5"
    ),
    "xlm": (
        "INFO - 05/01/24 10:00:{0:02d} - 0:00:{0:02d} - {i:6d} -   32.00 sent/s -  1020.1 words/s -"
        " MLM-en:  10.1 || AE-en:  1.0 - model LR:  1e-04"
    ),
    "hugectr": (
        "[HCTR][10:00:{:02d}.414][INFO][RK0][main]: Iter: {i} Time(1 iters): 2.0s Loss: 0.1 lr:0.1"
    ),
    "deepmd": (
        "[" + DAY + ",100] DEEPMD INFO    Batch {i:7d}: total wall time = 2.00 s, eta = 2:03:04"
    ),
    "levanter": (
        "Progress on:train {i}.0it/70.0it rate:9.8s/it remaining:1:05:15 elapsed:00:{0:02d} "
        "postfix:loss=4.2"
    ),
    "swift": (
        "{{'loss': 1.2, 'grad_norm': 1.1, 'memory(GiB)': 9.1, 'train_speed(iter/s)': 0.4, 'epoch': "
        "0.1, 'global_step/max_steps': '{i}/500', 'percentage': '1%', 'elapsed_time': '{0}s'}}"
    ),
    "deepspeed-chat": (
        "|E2E latency=2.00s |Gather latency=1.20s (12.6%) |Generate time=0.40s (35.8%) |Training "
        "time=1.1s (55.1%) |Others=0.5 (2.1%)|CurSamplesPerSec=32.00 |AvgSamplesPerSec=31.00"
    ),
    "mindspore of its loss monitor": (
        "epoch: {i} step 82, loss is 0.02\nEpoch time: 2000.0, per step time: 2000.000\n"
        "Epoch time: 2000.1, per step time: 2000.001, avg loss: 0.020"
    ),
    "mindspore-one-line": "epoch[{i}/20], iter[56] cost: 9.1, per step time: 2000.0, avg loss: 1.2",
    "mindspore-one-line of YOLO": (
        DAY + ",545:INFO:epoch[{i}], iter[1], loss:206.3, fps:371.70 imgs/sec, lr:1.06e-05, "
        "per step time: 2000.0ms"
    ),
    "mindspore-epochs": "Train epoch time: {i}000.993 ms, per step time: 2000.000 ms",
    "tf-estimator-rates": "INFO:tensorflow:global_step/sec: 0.5",
    "lightning-rich": ("Epoch 0/9  ━━━╺━━━━ {i}/291 0:00:{0:02d} • 0:01:09 7.00it/s loss: 0.4"),
    "tinygrad": "{i:5} 2.00 s run, 11.8 loss, 0.000000000001 LR, 642.43 GB used,  19644.30 GFLOPS",
    "tinygrad of beautiful_mnist": (
        "{i:3} 2000.00 ms run, 9.1 ms python,  1.1 ms GPU, 2.31 loss, 0.1 LR, 0.4 GB used, 9 GFLOPS"
    ),
    "verl": (
        "(main_task pid=9) step:{i} - actor/pg_loss:0.1 - timing_s/gen:1.5 - timing_s/step:2.0 - "
        "perf/total_num_tokens:159906 - perf/time_per_step:2.0 - perf/throughput:3283.3"
    ),
    "verl with types": (
        "Training Progress: 2%|# | {i}/99 [0:01:00<9:31, 9.1s/it]\n(TaskRunner pid=9) step:{i} - "
        "timing_s/step:np.float64(2.0) - perf/throughput:np.float64(3283.3)"
    ),
    "paddle of its model zoo": (
        "[Epoch 1, iter: {i}] wordRate: 0.1, loss: 905.8, avg_reader_cost: 0.17 sec, "
        "avg_batch_cost: 2.00 sec, avg_samples: 8.0, avg_ips: 4.00 images/sec."
    ),
    "progress-bar of a stream": "Epoch 0: | | {i}/? [00:{0:02d}<00:00,  0.06it/s, train_loss=14.6]",
    "progress-bar without an end": "steps: {i}it [00:{0:02d},  2.0s/it, loss=14.6]",
    "picotron": (
        "[rank 0] Step: {i:<5d} | Loss:  4.2 | Global batch size:   1.00M | Tokens/s:  500.0K | "
        "Tokens/s/GPU:   62.5K | Tokens:    1.0M | MFU: 38.81% | Memory usage:  20.11GB"
    ),
    "litgpt": (
        "Epoch 1 | iter {i} step {i} | loss train: 10.9, val: n/a | iter time: 2000.00 ms (step) "
        "remaining time: 3:04:05"
    ),
    "key-value with spaces": "step = {i}, loss = 9.1, step_time = 2.0",
    "key-value of DiT": "[" + DAY + "] (step={i:07d}) Train Loss: 0.15, Train Steps/Sec: 0.50",
    "key-value of MLX": "Iter {i}: Train loss 2.1, It/sec 0.500, Tokens/sec 812.1, Peak mem 10 GB",
    "key-value of OpenNMT-tf": "Step = {i} ; steps/s = 0.50, source words/s = 29000 ; Loss = 8.1",
    "key-value with a clock": DAY + ",100 INFO step {i} loss 9.1 epoch time 2.0",
    "key-value of transformers with a clock": "[INFO] "
    + DAY
    + ",371 >> {{'loss': 0.63, 'step': {i}}}",
    "key-value of FunASR": (
        "[" + DAY + ",101][root][INFO] - train, rank: 0, epoch: 0/50, step_in_slice: {i}/1000, "
        "total step: {i}, (loss_avg_rank: 1.2), (lr: 1.e-04), [('loss', 1.2)], {{'total_time': 9}}"
    ),
    "key-value of Detectron": 'json_stats: {{"eta": "1:00:00", "iter": {i}, "time": "2.000"}}',
    "key-value of ranks": "[rank0]: step {i} loss 9.1 step_time 2.0",
    "key-value with a mean": "step {i} | loss 9.1 | time per step: 2.0 s",
    "key-value of a tutorial": "Epoch [1/5], Step [{i}/938], Loss: 0.3, Time per step: 2.0 s",
    "key-value with parts": "step {i} | loss 9.1 | data time: 0.0100 | batch time: 2.0000",
    "key-value with its unit behind": "Step {i}/1000 loss 2.1 (2.0 s/step)",
    "megatron of BLOOM": (
        "[default7]: iteration {i:8d}/  115311 | consumed samples:      8192 | elapsed time per "
        "iteration (s): 2.00 | global batch size:    64 | lm loss: 2.1E+00 | TFLOPs: 150.0 |"
    ),
    "key-value of a loss that is none": "step={i} loss=nan grad=None step_time=2.0",
    "key-value of another loss that is none": "step: {i} loss: NaN step_time: 2.0",
    "key-value of NeMo Automodel": (
        DAY + " | INFO | root | step {i} | epoch 0 | loss 0.6974 | grad_norm 1.5436 | "
        "mem 24.90 GiB | tps 11278.56(1409.82/gpu) | num_label_tokens 21541"
    ),
    "key-value of what it took": "Step {i} took 2.00 seconds, loss 3.2",
    "key-value of its speed": "iter {i}: loss 3.2, 0.5 it/s",
    "key-value of seconds since 1970": "step: {i} time: 17141200{0:02d}.5 loss: 3.2",
    "key-value of milliseconds since 1970": "step: {i} time: 17141200{0:02d}500 loss: 3.2",
    "stylegan": (
        "tick {i:<5d} kimg {i}.6      time 1h 19m 08s   sec/tick 125.0   sec/kimg 31.25   "
        "maintenance 7.7    cpumem 5.54   gpumem 10.88  reserved 20.23  augment 0.188"
    ),
    "stable-baselines": (
        "| time/                   |              |\n|    fps                  | 1024         |\n"
        "|    iterations           | {i}          |\n|    time_elapsed         | {0}          |\n"
        "|    total_timesteps      | 4096         |\n|    loss                 | 20.1         |"
    ),
    "stable-baselines of OpenAI": (
        "| misc/nupdates           | {i}             |\n| misc/serial_timesteps   | 128  |\n"
        "| misc/time_elapsed       | {0}.0           |\n| misc/total_timesteps    | 2048 |"
    ),
    "rsl-rl": (
        "                       Learning iteration {i}/1500                       \n\n"
        "     Computation: 98304 steps/s (collection: 1.700s, learning 0.300s)\n"
        "                    Iteration time: 2.00s\n      Total time: {0}.00s"
    ),
    "torch-xla": (
        "| Training Device=xla:0/2 Epoch=1 Step={i} Loss=0.01022 Rate=4.0 GlobalRate=2.5 "
        "Time=10:00:{0:02d}"
    ),
    "openpcdet": (
        DAY + ",382   INFO  Train:    1/80 (  1%) [{i:4d}/1856 (  3%)]  Loss: 2.345 (3.21)  "
        "LR: 1.002e-03  Time cost: 25:41/15:00  Acc_iter {i:<10d}  Data time: 0.01(0.02)  "
        "Forward time: 0.48(0.49)  Batch time: 1.93(1.91)"
    ),
    "openpcdet of MTR": (
        DAY + ",382   INFO  epoch: 0/30, acc_iter={i}, cur_iter={i}/1218, batch_size=10, "
        "iter_cost=3.72s, time_cost(epoch): 30:56/16:12, loss=555.664, lr=0.0001"
    ),
    "deepspeed-chat-lines": (
        "Epoch: 0 | Step: {i} | PPO Epoch: 1 | Actor Loss: 0.01 | Critic Loss: 0.02\n"
        "End-to-End => Latency: 2.00s, TFLOPs: 3.29, Samples/sec: 32.0, Time/seq 0.03s, "
        "Batch Size: 64, Total Seq. Length: 512\nGeneration => Latency: 1.77s, TFLOPs: 0.85"
    ),
    "nemo-rl": (
        "========= Step {i}/1000 =========\n  • Loss: 0.0123\n  • Avg Reward: 0.5\n"
        "  • Total step time: 2.00s\n  • policy_training: 0.40s (20.0%)"
    ),
    "ssd-pytorch of DSFD": "Timer: 2.0000\nepoch:35 || iter:{i} || Loss:4.9334\n->>lr:0.0005",
    "basicsr": (
        DAY + ",123 INFO: [train..][epoch:  1, iter:{i:8,d}, lr:(2.000e-04,)] [eta: 1 day, "
        "3:10:11, time (data): 1.200 (0.003)] l_pix: 1.2e-02"
    ),
    "darknet": (
        " {i}: 1.2345, 2.3456 avg loss, 0.001000 rate, 2.000000 seconds, 64 images, 9.5 hours left"
    ),
    "darknet of its first years": "{i}: 1.2, 2.3 avg, 0.001000 rate, 2.000000 seconds, 64 images",
    "faster-rcnn": (
        "[session 1][epoch  1][iter {i:4d}/10021] loss: 1.2, lr: 1.00e-03\n"
        "\t\t\tfg/bg=(64/192), time cost: 2.000000\n\t\t\trpn_cls: 0.3, rpn_box: 0.1"
    ),
    "tf-faster-rcnn": (
        "iter: {i} / 70000, total loss: 1.2\n >>> loss_box: 0.4\nspeed: 2.000s / iter"
    ),
    "tacotron": "Train loss {i} 0.512345 Grad Norm 1.234567 2.00s/it",
    "hifi-gan": "Steps : {i}, Gen Loss Total : 30.123, Mel-Spec. Error : 0.512, s/b : 2.000",
    "ssd-pytorch": "timer: 2.0000 sec.\niter {i} || Loss: 15.7912 || Timer: 2.0000 sec.",
    "chainer": (
        "this epoch [####......] 40.00%\n       {i} iter, 0 epoch / 20 epochs\n"
        "    0.5 iters/sec. Estimated time to finish: 0:03:00."
    ),
    "trl": "{{'loss': 0.01, 'num_tokens': 9.0, 'reward': 0.5, 'step_time': 2.0, 'epoch': 0.1}}",
}
