#!/bin/bash
# Brings the field's own files that test_field_files.py reads, from public repositories:
#   bash tests/field_files.sh FOLDER && export TFDE_FIELD_FILES=FOLDER
# Who has TREC's disks 4 and 5 copies a file of FBIS to FOLDER/trec_disks/FB396001.
set -euo pipefail
folder=$1 base=${GIT_BASE:-https://github.com}
take() { # repository commit path...
  git init -q "$folder/$1" && cd "$folder/$1"
  git fetch -q --depth 1 "$base/$1" "$2"
  git checkout -q FETCH_HEAD -- "${@:3}"
  cd - >/dev/null
}
mkdir -p "$folder" && folder=$(cd "$folder" && pwd)
take castorini/anserini-tools 5b819c1a45c8a0a3ec9426f476694f44a29dfaf3 topics qrels
take castorini/anserini 81e3414573a39ad7433d271c5cadc360bc821945 src/test/resources/sample_docs/trec
take terrier-org/terrier-core 3ceec7d89cb943a56e4bf298b00897d4221d0002 share/vaswani_npl share/tests/shakespeare
take google-research-datasets/MultiReQA 90262e2b9491217ba5e56c218fc39f168d16ef85 data
take google-research-datasets/natural-questions fb26a3073b1fe636c97302890a27b491d6530130 nq_open
take mrqa/MRQA-Shared-Task-2019 b86bbcc63352786f0ca246b76191f062dce4b52b baseline
take deepset-ai/FARM 5919538f721c7974ea951b322d30a3c0e84a1bc2 test/samples/dpr
take kevswanberg/beer_tentrr 9573647bff33c61bdce2f07a9000a4098fd3074d Posts.xml
take Yoav-Shafir/Elasticsearch-Coffee-Search-Engine-JS 97e93c92aaa379fed6d0ee9be94b2024371d6aba Posts.xml
