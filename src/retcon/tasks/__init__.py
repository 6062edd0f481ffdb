"""Problems and how they are graded: task families, tasks from data, graders."""
