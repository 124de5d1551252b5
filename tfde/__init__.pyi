"""The public names: for editors, for type checkers, and for `__init__.py`, which imports lazily."""

from tfde.backbones.registry import register_backbone as register_backbone
from tfde.config.backbones import BackboneConfig as BackboneConfig
from tfde.config.backbones import BagOfWordsConfig as BagOfWordsConfig
from tfde.config.backbones import BertConfig as BertConfig
from tfde.config.backbones import T5Config as T5Config
from tfde.config.matching import MatcherConfig as MatcherConfig
from tfde.config.model import CrossEncoderConfig as CrossEncoderConfig
from tfde.config.model import PairTextConfig as PairTextConfig
from tfde.config.model import ParentConfig as ParentConfig
from tfde.config.model import Sharing as Sharing
from tfde.config.model import TextConfig as TextConfig
from tfde.config.phrases import PhraseConfig as PhraseConfig
from tfde.config.validation import ValidationConfig as ValidationConfig
from tfde.data.dataset_directory import DatasetDirectory as DatasetDirectory
from tfde.data.pairs.dataset import pairs as pairs
from tfde.environment import import_recommenders as import_recommenders
from tfde.evaluation.measures import evaluate as evaluate
from tfde.export.bundle import export_bundle as export_bundle
from tfde.export.saved_encoder import SavedEncoder as SavedEncoder
from tfde.export.sentence_transformers import (
    export_sentence_transformers as export_sentence_transformers,
)
from tfde.export.verify import verify_bundle as verify_bundle
from tfde.matching.cross_encoder import CrossEncoder as CrossEncoder
from tfde.matching.dual_encoder_as_pair_model import DualEncoderScorer as DualEncoderScorer
from tfde.matching.match_trainer import MatchTrainer as MatchTrainer
from tfde.matching.matcher import Matcher as Matcher
from tfde.matching.stored_texts import StoredTexts as StoredTexts
from tfde.matching.teaching import Teaching as Teaching
from tfde.phrases.phrase_encoder import PhraseEncoder as PhraseEncoder
from tfde.phrases.phrase_index import PhraseIndex as PhraseIndex
from tfde.retrieval.bm25_index import Bm25Index as Bm25Index
from tfde.retrieval.embeddings import Embeddings as Embeddings
from tfde.retrieval.encode_corpus import encode_corpus as encode_corpus
from tfde.retrieval.exact_index import ExactIndex as ExactIndex
from tfde.retrieval.faiss_index import FaissIndex as FaissIndex
from tfde.retrieval.live.live_index import LiveIndex as LiveIndex
from tfde.retrieval.multi_vector_index import MultiVectorIndex as MultiVectorIndex
from tfde.retrieval.rerank import rerank as rerank
from tfde.retrieval.retrieve import retrieve as retrieve
from tfde.retrieval.runs import read_run as read_run
from tfde.retrieval.runs import write_run as write_run
from tfde.retrieval.scann_index import ScannIndex as ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters as ScannParameters
from tfde.serving.client import Client as Client
from tfde.serving.sharded_client import ShardedClient as ShardedClient
from tfde.tasks.anchor import AnchorTask as AnchorTask
from tfde.tasks.guided import GuidedTask as GuidedTask
from tfde.tasks.margins import MarginTask as MarginTask
from tfde.tasks.matryoshka import MatryoshkaTask as MatryoshkaTask
from tfde.tasks.retrieval_task import RetrievalTask as RetrievalTask
from tfde.tasks.score_task import ScoreTask as ScoreTask
from tfde.tasks.task import Task as Task
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer as SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece as train_sentencepiece
from tfde.text.word_piece.tokenizer import WordPieceTokenizer as WordPieceTokenizer
from tfde.towers.average import average_models as average_models
from tfde.towers.dual_encoder import DualEncoder as DualEncoder
from tfde.training.optimizers import adafactor as adafactor
from tfde.training.optimizers import adamw as adamw
from tfde.training.retrieval_validation import RetrievalValidation as RetrievalValidation
from tfde.types import Document as Document
from tfde.types import Pair as Pair
from tfde.types import Query as Query

__version__: str
__all__: list[str]
