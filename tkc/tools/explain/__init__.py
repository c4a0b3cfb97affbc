"""`tkc explain`: one page about a kernel, from the user's lines to the machine code.

subject        which kernel, with which arguments
compilation    the compiler, with everything kept that it made on its way
listing        IR, PTX and machine code as lines, each with its line of the source
changes        what each pass changed
choices        the plan, the plans that were not taken, and what each costs by the model
performance, measured     the roofline; the time of a launch
memory, registers         buffers, layouts, banks; what threads hold, and how long
explanation    all of it as plain data
page           the data as HTML, with the script and style of page/
"""
