"""Parts of `plan`: what a data flow permits, how operands reach the engines, what a choice costs."""
