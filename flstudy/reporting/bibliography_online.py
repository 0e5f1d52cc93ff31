"""BibTeX entries of online learning, and of what its runs read."""

ONLINE: dict[str, str] = {
    "ganguly2024": """@article{ganguly2024,
  author  = {Ganguly, Bhargav and Aggarwal, Vaneet},
  title   = {Online Federated Learning via Non-Stationary Detection and Adaptation Amidst Concept Drift},
  journal = {IEEE/ACM Transactions on Networking}, volume = {32}, number = {1}, year = {2024}
}""",
    "mitra2021": """@inproceedings{mitra2021,
  author    = {Mitra, Aritra and Hassani, Hamed and Pappas, George J.}, title = {Online Federated Learning},
  booktitle = {IEEE Conference on Decision and Control (CDC)}, pages = {4083--4090}, year = {2021}
}""",
    "wei2021": """@inproceedings{wei2021,
  author    = {Wei, Chen-Yu and Luo, Haipeng}, pages = {4300--4354}, year = {2021},
  title     = {Non-Stationary Reinforcement Learning without Prior Knowledge: An Optimal Black-Box Approach},
  booktitle = {Conference on Learning Theory (COLT)}
}""",
    "chang2011": """@article{chang2011,
  author  = {Chang, Chih-Chung and Lin, Chih-Jen}, title = {{LIBSVM}: A Library for Support Vector Machines},
  journal = {ACM Transactions on Intelligent Systems and Technology}, volume = {2}, number = {3}, year = {2011}
}""",
    "weyand2020": """@inproceedings{weyand2020,
  author    = {Weyand, Tobias and Araujo, Andr{\\'e} and Cao, Bingyi and Sim, Jack}, year = {2020},
  title     = {Google Landmarks Dataset v2: A Large-Scale Benchmark for Instance-Level Recognition and Retrieval},
  booktitle = {Computer Vision and Pattern Recognition (CVPR)}
}""",
    "hsu2020": """@inproceedings{hsu2020,
  author    = {Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew}, year = {2020},
  title     = {Federated Visual Classification with Real-World Data Distribution},
  booktitle = {European Conference on Computer Vision (ECCV)}
}""",
}
