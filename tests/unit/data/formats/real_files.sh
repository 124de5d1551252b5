#!/bin/bash
# Writes real_files.jsonl, what the files say by zcat, sed and jq alone:
#   cd $TFDE_DATA && bash real_files.sh > real_files.jsonl
three() { sed -n '1p;10p;$p'; }
for d in covid_faq covidqa fairytaleqa medquad multireqa_squad openstax_glossary pubmedqa scifact squad squad_sent stackexchange_bev xquad_multi; do
 docs=$(zcat $d/corpus.jsonl.gz | wc -l); nq=$(zcat -f $d/queries.jsonl* | wc -l)
 corpus=$(zcat $d/corpus.jsonl.gz | three | jq -c '[._id,.title,(.text|length),.text[:40]]' | jq -sc .)
 queries=$(zcat -f $d/queries.jsonl* | three | jq -c '[._id,.text]' | jq -sc .)
 splits='{}'
 for s in train dev test; do f=$d/qrels/$s.tsv; if [ -f $f ]; then
  n=$(($(wc -l < $f)-1)); u=$(tail -n +2 $f | cut -f1 | sort -u | wc -l)
  rows=$(tail -n +2 $f | three | jq -Rc 'split("\t")|[.[0],.[1],(.[2]|tonumber)]' | jq -sc .)
  splits=$(jq -nc --argjson a "$splits" --argjson r "$rows" --argjson n $n --argjson u $u --arg s $s '$a + {($s): {judgements:$n, queries:$u, rows:$r}}')
 fi; done
 jq -nc --arg d $d --argjson docs $docs --argjson nq $nq --argjson c "$corpus" --argjson q "$queries" --argjson s "$splits" '{kind:"retrieval",name:$d,documents:$docs,queries:$nq,corpus:$c,query_rows:$q,splits:$s}'
done
for d in mrpc rte qnli_part sick_nli stsb; do for s in train dev test; do for f in $d/$s.tsv $d/$s.tsv.gz; do if [ -f $f ]; then
 n=$(zcat -f $f | tail -n +2 | wc -l)
 rows=$(zcat -f $f | tail -n +2 | three | jq -Rc 'split("\t")' | jq -sc .)
 labels=$(zcat -f $f | tail -n +2 | awk -F'\t' '{print $NF}' | sort | uniq -c | awk '{print $2"\t"$1}' | jq -Rc 'split("\t")|{key:.[0],value:(.[1]|tonumber)}' | jq -sc 'from_entries')
 jq -nc --arg f $f --argjson n $n --argjson r "$rows" --argjson l "$labels" '{kind:"pairs",name:$f,pairs:$n,rows:$r,labels:(if ($l|length)<=3 then $l else null end)}'
fi; done; done; done
